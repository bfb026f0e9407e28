#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Everything that needs a GPU, within time limits: tests (the memory checker among them), verify,
# benchmark.
#
#   scripts/gpu_check.sh [FOLDER]    writes FOLDER/gpu_check.json and FOLDER/gpu_check.txt,
#                                    and the benchmark's FOLDER/benchmark.jsonl
#
# Environment: PYTHON (python3), WORKERS (8, with pytest-xdist), CTO_LARGE=1 for the tests marked
# large, and the limits in seconds TESTS_LIMIT, LARGE_LIMIT, VERIFY_LIMIT, BENCHMARK_LIMIT.
set -u
cd "$(dirname "$0")/.." || exit 2
folder=${1:-results}
python=${PYTHON:-python3}
mkdir -p "$folder"
report=$folder/gpu_check.txt
json=$folder/gpu_check.json
export CTO_REQUIRE_GPU=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
: >"$report"
rows=()
failed=0

step() { # NAME SECONDS COMMAND...
  local name=$1 limit=$2 start=$SECONDS status
  shift 2
  printf '== %s: %s\n' "$name" "$*" >>"$report"
  timeout "$limit" "$@" >>"$report" 2>&1
  status=$?
  rows+=("{\"step\": \"$name\", \"status\": $status, \"seconds\": $((SECONDS - start)), \"limit\": $limit}")
  printf '%-10s status %3d  %4d s\n' "$name" "$status" "$((SECONDS - start))"
  [ "$status" -eq 0 ] || failed=1
}

workers=()
"$python" -c 'import xdist' 2>/dev/null && workers=(-n "${WORKERS:-8}")
step tests "${TESTS_LIMIT:-300}" "$python" -m pytest -q "${workers[@]}" tests
if [ "${CTO_LARGE:-0}" = 1 ]; then
  step large "${LARGE_LIMIT:-240}" "$python" -m pytest -q -m large tests
fi
step verify "${VERIFY_LIMIT:-60}" "$python" -m cupy_training_ops verify
step roundtrip 60 "$python" -m cupy_training_ops roundtrip --provider cuda \
  tests/data/digits_cnn_activations.npz
step benchmark "${BENCHMARK_LIMIT:-240}" "$python" scripts/benchmark.py --out "$folder/benchmark.jsonl"
step report 30 "$python" scripts/benchmark_report.py "$folder/benchmark.jsonl"
(IFS=,; printf '{"steps": [%s]}\n' "${rows[*]}") >"$json"
grep -E '^(FAILED|ERROR|E  )|passed|failed' "$report" | tail -n 40
exit $failed
