#!/bin/bash -eu
# Builds a fuzzer of each target, with whole files to begin with; OSS-Fuzz runs it in the image of the Dockerfile.
pip3 install .
cd scripts/fuzzing
export PYTHONPATH=$PWD JAX_PLATFORMS=cpu
for target in $(python3 -c "import fuzz_targets; print(*fuzz_targets.TARGETS)"); do
  printf 'import sys\n\nimport coverage_guided\n\ncoverage_guided.fuzz("%s", sys.argv[1:])\n' "$target" >"fuzz_$target.py"
  compile_python_fuzzer "fuzz_$target.py" --hidden-import fuzz_targets --collect-all jaxprune --collect-data jax
  python3 -c "import fuzz_targets, pathlib; fuzz_targets.write_seeds('$target', pathlib.Path('$WORK/$target'))"
  zip -jq "$OUT/fuzz_${target}_seed_corpus.zip" "$WORK/$target"/*
done
