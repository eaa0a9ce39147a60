"""Optimised programs as the compilers print them, with fusions that were made up; no compiler is needed."""

import pytest

from jaxprune.accelerators import CHIPS, program_text
from jaxprune.accelerators.hlo import Array, Module

TPU = """HloModule jit_step, is_scheduled=true, entry_computation_layout={(f32[64,32]{1,0:T(8,128)})->f32[64,32]{1,0}}

%region_0.0 (a: f32[], b: f32[]) -> f32[] {
  %a = f32[]{:T(128)} parameter(0)
  %b = f32[]{:T(128)} parameter(1)
  ROOT %sum = f32[]{:T(128)} add(%a, %b)
}

%fused_computation (p0: bf16[16,32], p1: bf16[32,8]) -> f32[16,8] {
  %p0 = bf16[16,32]{1,0:T(8,128)(2,1)} parameter(0)
  %p1 = bf16[32,8]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  ROOT %conv = f32[16,8]{1,0:T(8,128)} convolution(%p0, %p1), dim_labels=bf_io->bf, metadata={op_name="dot (x)"}
}

%all-reduce-scatter.1 (p: f32[64,32]) -> f32[8,32] {
  %p = f32[64,32]{1,0} parameter(0)
  %all-reduce.7 = f32[64,32]{1,0} all-reduce(%p), replica_groups={{0,1}}, to_apply=%region_0.0
  ROOT %slice = f32[8,32]{1,0} slice(%all-reduce.7), slice={[0:8], [0:32]}
}

%body (state: (s32[], f32[16,8])) -> (s32[], f32[16,8]) {
  %state = (s32[]{:T(128)}, f32[16,8]{1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%state), index=0
  %x = f32[16,8]{1,0} get-tuple-element(%state), index=1
  %copy.1 = f32[16,8]{1,0} copy(%x), backend_config={"window_config":{"estimated_cycles":"100","x":["1"]}}
  ROOT %next = (s32[]{:T(128)}, /*index=1*/f32[16,8]{1,0:T(8,128)}) tuple(%i, %copy.1)
}

%condition (state.1: (s32[], f32[16,8])) -> pred[] {
  %state.1 = (s32[]{:T(128)}, f32[16,8]{1,0:T(8,128)}) parameter(0)
  ROOT %true = pred[]{:T(128)} constant(true)
}

ENTRY %main.4_spmd (x.1: bf16[16,32], w: bf16[32,8], g: f32[64,32]) -> f32[8,32] {
  %x.1 = bf16[16,32]{1,0:T(8,128)(2,1)} parameter(0), sharding={devices=[8,1]<=[8]}, metadata={op_name="x"}
  %w = bf16[32,8]{1,0} parameter(1)
  %g = f32[64,32]{1,0} parameter(2)
  %fusion.1 = f32[16,8]{1,0:T(8,128)S(1)} fusion(%x.1, %w), kind=kOutput, calls=%fused_computation, \
backend_config={"flag_configs":[],"window_config":{"estimated_cycles":"4352","cost_model_type":"COST_MODEL_TYPE_CLASSIC"}}
  %zero = s32[]{:T(128)} constant(0)
  %init = (s32[]{:T(128)}, f32[16,8]{1,0:T(8,128)}) tuple(%zero, %fusion.1)
  %while.1 = (s32[]{:T(128)}, f32[16,8]{1,0:T(8,128)}) while(%init), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"7"}}
  %all-gather-start.1 = (bf16[16,32]{1,0}, bf16[128,32]{1,0}) all-gather-start(%x.1), dimensions={0}
  %all-gather-done.1 = bf16[128,32]{1,0} all-gather-done(%all-gather-start.1)
  ROOT %fusion.2 = f32[8,32]{1,0:T(8,128)} fusion(%g), kind=kCustom, calls=%all-reduce-scatter.1
}
"""

GPU = """HloModule jit_step

ENTRY %main (x: bf16[16,32], w: bf16[32,8]) -> bf16[16,8] {
  %x = bf16[16,32]{1,0} parameter(0)
  %w = bf16[32,8]{1,0} parameter(1)
  %gemm = (bf16[16,8]{1,0}, s8[4096]{0}) custom-call(%x, %w), custom_call_target="__cublas$gemm", \
backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],\
"rhs_contracting_dimensions":["0"]}}}
  ROOT %out = bf16[16,8]{1,0} get-tuple-element(%gemm), index=0
}
"""


def test_a_program_is_read_with_its_types_and_calls():
    module = Module.parse(TPU)
    assert module.entry == "main.4_spmd" and len(module.computations) == 6
    fusion = next(line for line in module.computations[module.entry] if line.name == "fusion.1")
    assert fusion.operands == ("x.1", "w") and fusion.calls == ("fused_computation",)
    assert fusion.results == (Array("f32", (16, 8)),)
    last = module.computations["body"][-1]
    assert last.op == "tuple" and last.results == (Array("s32", ()), Array("f32", (16, 8)))


def test_cycles_of_a_loop_count_as_often_as_it_runs():
    assert program_text.cycles(Module.parse(TPU)) == {"fusion": 4352, "copy": 700}
    assert program_text.cycles(Module.parse(GPU)).total() == 0


def loop(start="0", end="12", stride="1", compare="compare(%i.1, %end), direction=LT"):
    """A loop as TPUs' compiler writes it: its length stands in the condition and in the counter's steps only."""
    return f"""HloModule jit_loop

%body (state: (s32[], f32[16,8])) -> (s32[], f32[16,8]) {{
  %state = (s32[]{{:T(128)}}, f32[16,8]{{1,0:T(8,128)}}) parameter(0)
  %x = f32[16,8]{{1,0}} get-tuple-element(%state), index=1
  %i = s32[]{{:T(128)}} get-tuple-element(%state), index=0
  %copy.1 = f32[16,8]{{1,0}} copy(%x), backend_config={{"window_config":{{"estimated_cycles":"100"}}}}
  %stride = s32[]{{:T(128)}} constant({stride})
  %i.2 = s32[]{{:T(128)}} add(%i, %stride)
  ROOT %next = (s32[]{{:T(128)}}, f32[16,8]{{1,0:T(8,128)}}) tuple(%i.2, %copy.1)
}}

%condition (state.1: (s32[], f32[16,8])) -> pred[] {{
  %end = s32[]{{:T(128)}} constant({end})
  %state.1 = (s32[]{{:T(128)}}, f32[16,8]{{1,0:T(8,128)}}) parameter(0)
  %i.1 = s32[]{{:T(128)}} get-tuple-element(%state.1), index=0
  ROOT %goes.on = pred[]{{:T(512)}} {compare}
}}

ENTRY %main (x.1: f32[16,8]) -> f32[16,8] {{
  %x.1 = f32[16,8]{{1,0}} parameter(0)
  %begin = s32[]{{:T(128)}} constant({start})
  %copy.2 = s32[]{{:T(128)}} copy(%begin)
  %init = (s32[]{{:T(128)}}, f32[16,8]{{1,0:T(8,128)}}) tuple(%copy.2, %x.1)
  %while.1 = (s32[]{{:T(128)}}, f32[16,8]{{1,0:T(8,128)}}) while(%init), condition=%condition, body=%body
  ROOT %out = f32[16,8]{{1,0}} get-tuple-element(%while.1), index=1
}}
"""


@pytest.mark.parametrize(
    ("options", "times"),
    [
        ({}, 12),
        ({"start": "2"}, 10),
        ({"start": "12"}, 0),
        ({"stride": "2"}, 6),
        ({"start": "1", "stride": "2"}, 6),
        ({"compare": "compare(%i.1, %end), direction=NE"}, 1),
        ({"compare": "parameter(1)"}, 1),
    ],
)
def test_a_loop_that_says_only_where_it_ends_counts_as_often_as_it_runs(options, times):
    assert program_text.cycles(Module.parse(loop(**options))).total() == 100 * times


def test_communication_is_counted_with_the_bytes_of_its_results():
    assert program_text.collectives(Module.parse(TPU)) == {
        "all-gather": (1, 128 * 32 * 2),
        "reduce-scatter": (1, 64 * 32 * 4),
    }
    assert program_text.collectives(Module.parse(GPU)) == {}


def test_a_gather_in_pieces_beside_the_rounds_of_a_loop_is_one():
    attributes = """channel_id=15, dimensions={0}, frontend_attributes={chain_id="1"}"""
    piece = f"  %all-gather.1 = f32[64,8]{{1,0}} all-gather(%x), {attributes}\n  %copy.1 ="
    text = loop().replace("  %copy.1 =", piece, 1)
    start = f"  %all-gather.2 = f32[64,8]{{1,0}} all-gather(%x.1), {attributes}\n  %begin ="
    module = Module.parse(text.replace("  %begin =", start))
    assert program_text.collectives(module) == {"all-gather": (1, 64 * 8 * 4)}
    assert program_text.sent(module) == ((64 - 16) * 8 * 4, 0)
    other = Module.parse(text.replace("  %begin =", start.replace('chain_id="1"', 'chain_id="2"')))
    assert program_text.collectives(other)["all-gather"][0] == 2


@pytest.mark.parametrize(
    ("line", "sent", "results"),
    [
        ("(f32[64,8], f32[32,8], f32[8,8], f32[4,8]) reduce-scatter-start(%a, %b)", (56 + 28) * 32, 12 * 32),
        ("(f32[64,8], f32[32,8], f32[512,8], f32[256,8]) all-gather-start(%a, %b)", (448 + 224) * 32, 768 * 32),
        ("(f32[64,8], f32[64,8], u32[], u32[]) collective-permute-start(%a)", 64 * 32, 64 * 32),
        ("f32[64,8] all-reduce-start(%a)", 2 * 64 * 32, 64 * 32),
    ],
)
def test_a_start_lists_its_operands_beside_its_results(line, sent, results):
    module = Module.parse(f"""HloModule step
ENTRY %main (a: f32[64,8], b: f32[32,8]) -> f32[8,8] {{
  %a = f32[64,8] parameter(0)
  %b = f32[32,8] parameter(1)
  %start = {line}, dimensions={{0}}
}}
""")
    ((_, (count, volume)),) = program_text.collectives(module).items()
    assert (count, volume) == (1, results) and program_text.sent(module) == (sent, 0)


def test_what_a_chip_sends_is_what_others_lack():
    gathered, reduced = (128 - 16) * 32 * 2, 64 * 32 * 4
    assert program_text.sent(Module.parse(TPU)) == (gathered + reduced, 0)
    at_once = TPU.replace("(bf16[16,32]{1,0}, bf16[128,32]{1,0}) all-gather-start", "bf16[128,32]{1,0} all-gather")
    assert program_text.sent(Module.parse(at_once)) == (gathered + reduced, 0)
    fusion = "fusion(%g), kind=kCustom, calls=%all-reduce-scatter.1"
    scattered = TPU.replace(fusion, "reduce-scatter(%g), dimensions={0}, to_apply=%region_0.0")
    assert program_text.sent(Module.parse(scattered)) == (gathered + (64 - 8) * 32 * 4, 0)
    everywhere = TPU.replace(fusion, "all-reduce(%g), to_apply=%region_0.0")
    assert program_text.sent(Module.parse(everywhere)) == (gathered + 2 * reduced, 0)
    away = TPU.replace(
        "  %zero =",
        "  %send = (f32[64,32]{1,0}, u32[], token[]) send(%g, %token), channel_id=2, is_host_transfer=true, "
        'frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime"}\n  %zero =',
    )
    assert program_text.sent(Module.parse(away)) == (gathered + reduced, reduced)


@pytest.mark.parametrize("text", [TPU, GPU])
def test_matrix_products_count_two_operations_a_multiply_add(text):
    assert program_text.flops(Module.parse(text)) == 2 * 16 * 32 * 8


@pytest.mark.parametrize(
    ("window", "labels", "image", "kernel", "result", "multiply_adds"),
    [
        # Two images with three heads, as a TPU's compiler writes a batched product: 6 products of 5 x 4 by 4 x 7.
        (
            "size=2x3 stride=1x2 lhs_dilate=2x3",
            "0b1f_0o1i->01bf",
            (2, 5, 3, 4),
            (2, 7, 3, 4),
            (2, 3, 5, 7),
            6 * 5 * 4 * 7,
        ),
        ("size=3 stride=2 pad=0_1", "b0f_0io->b0f", (1, 4, 1), (3, 1, 1), (1, 2, 1), 5),
        ("size=2 rhs_dilate=2", "b0f_0io->b0f", (2, 5, 3), (2, 3, 4), (2, 3, 4), 2 * 3 * 2 * 3 * 4),
    ],
)
def test_products_with_the_padding_of_a_convolution_do_not_count(window, labels, image, kernel, result, multiply_adds):
    shape = lambda sizes: f"f32[{','.join(map(str, sizes))}]{{0}}"
    text = f"""HloModule m

ENTRY %main (x: f32[1], w: f32[1]) -> f32[1] {{
  %x = {shape(image)} parameter(0)
  %w = {shape(kernel)} parameter(1)
  ROOT %y = {shape(result)} convolution(%x, %w), window={{{window}}}, dim_labels={labels}
}}
"""
    assert program_text.flops(Module.parse(text)) == 2 * multiply_adds


def test_the_roofline_takes_the_larger_of_products_and_bytes():
    chip = CHIPS["h100"]
    moved = 2 * (16 * 32 + 32 * 8 + 16 * 8) + 4096
    assert program_text.moved(Module.parse(GPU)) == moved
    assert program_text.roofline(Module.parse(GPU), chip) == pytest.approx(moved / chip.bandwidth)


def test_float64_and_calls_of_the_host_are_seen():
    assert not program_text.uses_float64(Module.parse(TPU)) and not program_text.calls_host(TPU)
    assert program_text.uses_float64(Module.parse(TPU.replace("f32[16,8]", "f64[16,8]")))
    call = '  %c = f32[] custom-call(%x), custom_call_target="xla_ffi_partitioned_python_gpu_callback"\n'
    assert program_text.calls_host(GPU + call)
    assert program_text.calls_host("%s = token[] send-done(%t), is_host_transfer=true")


@pytest.mark.parametrize(("dtype", "num_bytes"), [("bf16", 12), ("f8e4m3fn", 6), ("pred", 6), ("s4", 3), ("f64", 48)])
def test_bytes_of_types(dtype, num_bytes):
    assert Array(dtype, (2, 3)).num_bytes == num_bytes
