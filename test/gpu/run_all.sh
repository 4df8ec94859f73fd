#!/usr/bin/env bash
# The tests that need a CUDA device and every bench on it, within ten minutes.
#
#   test/gpu/run_all.sh FOLDER                    all of it
#   test/gpu/run_all.sh FOLDER tests|bench-a|bench-b|NAME...    a part, or benches by name
#
# Writes to FOLDER: log.txt, summary.txt, benches.json, plots.tar.gz and the tests' results as
# tests-*.xml, each as soon as there is something to write, so that whoever is killed leaves what
# there is. What fails or hangs costs its own figures only. Ends with 1 if anything failed or a
# target was missed. ROS is not needed: what needs it is left out, and says so.
#
# PYTHON names the Python, LIMIT_S the seconds to take (570), DEVICE another device (cpu).
set -uo pipefail

folder=${1:?"usage: $0 FOLDER [all | tests | bench-a | bench-b | NAME...]"}
shift
parts=("${@:-all}")
python=${PYTHON:-python3} device=${DEVICE:-cuda} limit_s=${LIMIT_S:-570}

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$(dirname "$0")/../.."
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1
# A device that is missing must fail here, not skip.
[ "$device" = cuda ] && export FLASHRT_REQUIRE_GPU=1

# Seconds that a bench is worth: shares of the time there is.
declare -A worth=(
  [replay]=200 [restore]=45 [snapshot]=75 [fork]=20 [steady]=20 [ttft]=150 [barge_in]=90
  [pinned]=60 [archive]=55 [tick]=60 [goal]=80 [interrupt]=45 [service]=45 [cohost]=120
)
group_a=" replay restore snapshot fork steady ttft barge_in "
other_s=40  # of a bench that is not named above; it is in part b
start_s=8   # to import, to open the device, to draw
least_s=11  # below ten seconds a bench takes its smallest size only
alone_s=100 others_s=200
over_s=60   # what a bench may take over its share, where it starts, captures or compiles
end_s=$((limit_s + 15))

known=$("$python" -c 'from flashrt_ros.bench.registry import BENCHES; print(*BENCHES)') || exit 1
benches=() has_tests=no
for part in "${parts[@]}"; do
  case $part in
    tests) has_tests=yes ;;
    all) has_tests=yes; read -ra benches <<<"$known" ;;
    bench-a) for name in $known; do [[ $group_a == *" $name "* ]] && benches+=("$name"); done ;;
    bench-b) for name in $known; do [[ $group_a == *" $name "* ]] || benches+=("$name"); done ;;
    *) [[ " $known " == *" $part "* ]] || { echo "no part or bench '$part': $known" >&2; exit 2; }
      benches+=("$part") ;;
  esac
done

scratch=$(mktemp -d)
mkdir "$scratch/json" "$scratch/plots"
status=0

# summarize: renew what is kept of the benches and tests that have ended
summarize() {
  "$python" test/gpu/summarize.py "$scratch/json" "$folder" >"$scratch/shown" 2>>"$folder/log.txt"
}
finish() {
  trap - EXIT INT TERM
  jobs -p | xargs -r kill 2>/dev/null
  summarize && cat "$scratch/shown"
  rm -rf "$scratch"
  exit "$status"
}
trap finish EXIT
trap 'status=130; exit' INT TERM

say() { printf '%4d s  %s\n' "$SECONDS" "$1" | tee -a "$folder/log.txt"; }

# limited SIGNAL SECONDS COMMAND...: run it into the log; when the time is up, a signal, then kill
limited() {
  local signal=$1 seconds=$2
  shift 2
  # In the background, so that a signal is heeded at once; there SIGINT would be ignored.
  timeout --signal="$signal" --kill-after=15 "$seconds" env --default-signal=INT "$@" \
    >>"$folder/log.txt" 2>&1 &
  wait $!
}

# run_tests NAME SECONDS ARGUMENTS...
run_tests() {
  local name=$1 seconds=$2
  shift 2
  # A folder with a short name: sockets lie below it. What can't be imported costs its own tests.
  # Interrupted, pytest still writes what it has.
  limited INT "$seconds" "$python" -m pytest -v -m gpu -p no:cacheprovider -p no:benchmark \
    --continue-on-collection-errors --basetemp="$scratch/${name:0:1}" \
    --junitxml="$folder/tests-$name.xml" "$@"
  local code=$?
  [ $code -eq 0 ] || status=1
  say "tests, $name: $([ $code -eq 124 ] && echo 'out of time' || echo "exit code $code")"
}

has_module() { "$python" -c "import $1" 2>/dev/null; }

{
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv
  date -u +%Y-%m-%dT%H:%MZ
  "$python" -c 'import platform, torch; print(platform.python_version(), torch.__version__)'
} >>"$folder/log.txt" 2>&1

if [ $has_tests = yes ]; then
  limits=()
  has_module pytest_timeout && limits=(--timeout=150)
  # These look at the device's free memory, or at what overlaps on it: nobody beside them.
  alone=(test/runtime/test_cuda.py test/engine/embedded/test_cuda_engine.py)
  run_tests alone $alone_s "${limits[@]}" "${alone[@]}"
  # Rooms that see no device are not looked through: what they import may not be there.
  rooms=(bench cli engine models planner proof runtime)
  workers=()
  has_module xdist && workers=(-n 8 --dist worksteal)
  [ ${#benches[@]} -gt 0 ] || others_s=$((limit_s - SECONDS))
  run_tests others $others_s "${limits[@]}" "${workers[@]}" "${alone[@]/#/--ignore=}" \
    "${rooms[@]/#/test/}"
fi

worth_of() { echo "${worth[$1]:-$other_s}"; }

num_left=${#benches[@]}
for name in "${benches[@]}"; do
  # Everybody's share of what is left; what one leaves over goes to those that follow.
  total=0
  for other in "${benches[@]: -$num_left}"; do total=$((total + $(worth_of "$other"))); done
  seconds=$(((limit_s - SECONDS - start_s * num_left) * $(worth_of "$name") / total))
  [ $seconds -ge $least_s ] || seconds=$least_s
  [ $seconds -le $((2 * $(worth_of "$name"))) ] || seconds=$((2 * $(worth_of "$name")))
  num_left=$((num_left - 1))
  begun=$SECONDS
  most=$((seconds + over_s))
  [ $most -le $((end_s - begun)) ] || most=$((end_s - begun))
  if [ $most -lt $least_s ]; then
    status=1
    echo 'no time left' >"$scratch/json/$name.failed"
    say "$name: no time left"
    continue
  fi
  # Aborted, Python says where it was.
  limited ABRT "$most" "$python" -m flashrt_ros.cli.main bench "$name" --device "$device" \
    --budget "$seconds" --check --json "$scratch/json" --plot "$scratch/plots"
  code=$?
  [ $code -eq 0 ] || status=1
  [ -e "$scratch/json/$name.json" ] || echo "$code" >"$scratch/json/$name.failed"
  say "$name: $((SECONDS - begun)) s of $seconds, exit code $code"
  tar -czf "$scratch/plots.tar.gz" -C "$scratch/plots" . &&
    mv "$scratch/plots.tar.gz" "$folder/plots.tar.gz"
  summarize
done
