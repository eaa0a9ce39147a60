"""Arrays that an ONNX graph spreads out before an operator that would do so by itself are left as they are."""

from typing import Any

# Operators that broadcast, all of whose inputs JAX has spread out to one shape.
BROADCASTING = {"Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "And", "Or", "Xor", "Where"}
BROADCASTING |= {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}


def leave_to_operators(graph: Any) -> None:
    """Takes `Expand` away in front of operators that broadcast, and whatever nothing reads any more.

    Operands of JAX's element-wise operations have one shape; so one of them, which is left as it is, has the shape of
    the result. Spread-out biases and means would be written to memory as whole arrays, layer by layer.

    Args:
      graph: an `onnx.GraphProto` that was made of a traced JAX function, changed in place.
    """
    expanded = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Expand"}
    # Numbers in the traced function stay scalars, so constants say nothing about the shape.
    constants = {constant.name for constant in graph.initializer}
    constants.update(node.output[0] for node in graph.node if node.op_type == "Constant")
    for node in graph.node:
        if node.op_type not in BROADCASTING:
            continue
        spread = [index for index, name in enumerate(node.input) if name in expanded]
        # A condition may be a scalar, too.
        condition = int(node.op_type == "Where")
        whole = [name for name in node.input[condition:] if name not in expanded and name not in constants]
        kept = [] if whole else [index for index in spread if index >= condition][-1:]
        for index in spread:
            if index not in kept and (whole or kept):
                node.input[index] = expanded[node.input[index]]
    drop_unread(graph)


def drop_unread(graph: Any) -> None:
    """Removes the nodes and constants of a graph that no output needs."""
    wanted, nodes = {output.name for output in graph.output}, []
    for node in reversed(graph.node):
        if not wanted.isdisjoint(node.output):
            nodes.append(node)
            wanted.update(node.input)
    constants = [constant for constant in graph.initializer if constant.name in wanted]
    shapes = [info for info in graph.value_info if info.name in wanted]
    for field, kept in ((graph.node, nodes[::-1]), (graph.initializer, constants), (graph.value_info, shapes)):
        del field[:]
        field.extend(kept)
