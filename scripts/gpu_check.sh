#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Everything that needs a GPU, of the families named or of all: tests, memory checker, large tests,
# verify, benchmark. What needs none is .ci/run's.
#
#   scripts/gpu_check.sh FOLDER [FAMILY...]
#
# One line a step on stdout, the same in FOLDER/gpu_check.txt and, with the commit, in gpu_check.json;
# each step's output in FOLDER/<step>.log; the benchmark's in benchmark.jsonl and report.log. The exit
# status is 1 if a step failed. Steps that are not timed run beside each other, on kernels that the
# first step compiled.
#
# Environment: PYTHON (python3), CTO_COMMIT (the commit's name where there is no git), WORKERS (4, of
# the tests), and the limits of steps in seconds, COMPILE_LIMIT to BENCHMARK_LIMIT.
set -u
[ $# -ge 1 ] || { sed -n '6p' "$0" | cut -c3- >&2; exit 2; }
mkdir -p "$1" || exit 2
folder=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.." || exit 2
python=${PYTHON:-python3}
cores=$(nproc)
export CTO_COMMIT=${CTO_COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}
export CTO_REQUIRE_GPU=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
names=$("$python" scripts/families.py "$@") || exit 2

families=() # options of our scripts and tests
for family in "$@"; do families+=(--family "$family"); done
operators=() # options of commands; none for all
[ $# -eq 0 ] || for name in $names; do operators+=(--op "$name"); done
workers=()
"$python" -c 'import xdist' >/dev/null 2>&1 && workers=(-n "${WORKERS:-4}")
tests=(env "PYTHONPATH=$PWD/scripts${PYTHONPATH:+:$PYTHONPATH}" "$python" -m pytest -q -p gpu_tests)
jobs_of_peers=$((cores < 16 ? (cores + 1) / 2 : 8)) # each holds a case's arrays

steps=()
trap 'trap "" INT TERM; kill $(jobs -p); wait; exit 130' INT TERM

step() { # NAME SECONDS COMMAND...: in the background
  steps+=("$1")
  rm -f "$folder/$1.json"
  run "$@" &
}

run() {
  local name=$1 limit=$2 start=$SECONDS child status seconds
  shift 2
  printf '%s\n' "$*" >"$folder/$name.log"
  timeout -k 10 "$limit" "$@" >>"$folder/$name.log" 2>&1 </dev/null &
  child=$!
  trap 'kill "$child"; wait "$child"' TERM # so that nothing is left when the script ends
  wait "$child"
  status=$? seconds=$((SECONDS - start))
  printf '{"step": "%s", "status": %d, "seconds": %d, "limit": %d}\n' \
    "$name" "$status" "$seconds" "$limit" >"$folder/$name.json"
  printf '%-10s status %3d  %4d s\n' "$name" "$status" "$seconds" | tee -a "$folder/gpu_check.txt"
}

printf 'commit %s, families: %s\n' "$CTO_COMMIT" "${*:-all}" | tee "$folder/gpu_check.txt"

step compile "${COMPILE_LIMIT:-120}" \
  "$python" -m cupy_training_ops compile --jobs "$cores" "${operators[@]}"
wait

step tests "${TESTS_LIMIT:-240}" \
  "${tests[@]}" "${workers[@]}" "${families[@]}" tests
step planted "${MEMCHECK_LIMIT:-240}" bash -c '"$@"; [ $? -eq 9 ]' - \
  compute-sanitizer --padding 64 --error-exitcode 9 "$python" scripts/memory_check.py --plant
step memcheck "${MEMCHECK_LIMIT:-240}" \
  compute-sanitizer --padding 64 --error-exitcode 9 \
  "$python" scripts/memory_check.py "${families[@]}"
step racecheck "${RACECHECK_LIMIT:-240}" \
  compute-sanitizer --tool racecheck --error-exitcode 9 \
  "$python" scripts/memory_check.py "${families[@]}"
step verify "${VERIFY_LIMIT:-120}" "$python" -m cupy_training_ops verify "${operators[@]}"
if [[ $# -eq 0 || " $* " = *" gist "* ]]; then
  step roundtrip "${VERIFY_LIMIT:-120}" "$python" -m cupy_training_ops roundtrip --provider cuda \
    tests/data/digits_cnn_activations.npz
fi
step peers "${PEERS_LIMIT:-240}" \
  "$python" scripts/compiled_peers.py --jobs "$jobs_of_peers" "${families[@]}"
wait

step large "${LARGE_LIMIT:-240}" "${tests[@]}" -m large "${families[@]}" tests
wait

step benchmark "${BENCHMARK_LIMIT:-300}" \
  "$python" scripts/benchmark.py --out "$folder/benchmark.jsonl" "${families[@]}"
wait
step report 30 "$python" scripts/benchmark_report.py "$folder/benchmark.jsonl"
wait

rows=$(cd "$folder" && cat "${steps[@]/%/.json}")
printf '{"commit": "%s", "families": "%s", "steps": [%s]}\n' \
  "$CTO_COMMIT" "${*:-all}" "${rows//$'\n'/, }" >"$folder/gpu_check.json"
if [ "$(grep -c '"status": 0,' <<<"$rows")" -ne "${#steps[@]}" ]; then
  (cd "$folder" && grep -E '^(FAILED|ERROR|E  )|[0-9] (passed|failed)' "${steps[@]/%/.log}" | tail -n 40)
  exit 1
fi
