#!/usr/bin/env bash
# The tests that need a CUDA device and every bench on it, within ten minutes.
#
#   test/gpu/run_all.sh FOLDER
#
# Writes there: tests.txt, benches.txt, benches.json, device.txt and plots.tar.gz. Ends with 1 if
# a test failed, a bench found a wrong result, or a target was missed; everything is written even
# so. The Python to use may be named in PYTHON. ROS is not needed: what needs it is left out.
set -uo pipefail

folder=${1:?"usage: $0 FOLDER"}
python=${PYTHON:-python3}
tests_s=210 benches_s=300

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$(dirname "$0")/../.."
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
# A device that is missing must fail here, not skip.
export FLASHRT_REQUIRE_GPU=1
plots=$(mktemp -d)
trap 'rm -rf "$plots"' EXIT

status=0
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv > "$folder/device.txt" 2>&1
date -u +%Y-%m-%dT%H:%MZ >> "$folder/device.txt"

timeout --kill-after=10 "$tests_s" "$python" -m pytest -q -m gpu -p no:cacheprovider \
    2>&1 | tee "$folder/tests.txt" || status=1

# A bench may take more than its share where it has to start or capture something first.
timeout --kill-after=10 $((benches_s + 60)) "$python" -m flashrt_ros.cli.main bench all \
    --device cuda --budget "$benches_s" --check --json "$folder/benches.json" --plot "$plots" \
    2>&1 | tee "$folder/benches.txt" || status=1

tar -czf "$folder/plots.tar.gz" -C "$plots" .
exit "$status"
