#!/usr/bin/env bash
# Measure everything on a CUDA GPU in at most eight minutes, without a network, and put the tables into
# docs/performance.md: the pooling and whole models in every mode of bench_modes.py, precision, memory, and, where
# TIMM_TESTS_DIR names the tests folder of timm's source distribution, timm's own model tests on the GPU.
#
#   bash tools/bench/gpu.sh [--reference PATH/MPNCOV.py] [--output docs]
#   bash tools/bench/gpu.sh --device cpu --quick     the same on a processor, at the smallest sizes, into a new folder
#
# --quick takes the smallest sizes and leaves docs/ alone. A part that runs out of time keeps the rows that it has. Environment: PYTHON (python), TIMM_TESTS_DIR.
set -uo pipefail

device=cuda quick="" reference="" docs=""
while [ $# -gt 0 ]; do
    case "$1" in
        --quick) quick=1; shift ;;
        --device | --reference | --output)
            [ $# -ge 2 ] || { echo "$1 needs a value" >&2; exit 2; }
            case "$1" in --device) device="$2" ;; --reference) reference="$(realpath -m "$2")" ;; *) docs="$(realpath -m "$2")" ;; esac
            shift 2 ;;
        *) echo "unknown option $1; known are --device, --quick, --reference, --output" >&2; exit 2 ;;
    esac
done
cd "$(dirname "$0")/../.."
root="$PWD"
python="${PYTHON:-python}"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" MPLBACKEND=Agg TIMM_GCP_OFFLINE=1 HF_HUB_OFFLINE=1

"$python" -c "import torch, timm, matplotlib, tqdm" 2>/dev/null ||
    { echo "$python lacks torch, timm, matplotlib or tqdm; install the package with [test], or set PYTHON" >&2; exit 2; }
case "$device" in
    cpu) [ -n "$quick" ] || { echo "--device cpu needs --quick: at full size a processor takes hours" >&2; exit 2; } ;;
    cuda | cuda:*) "$python" -c "import sys, torch; sys.exit(not torch.cuda.is_available())" ||
        { echo "torch finds no CUDA GPU; run this where there is one, or try it with --device cpu --quick" >&2; exit 2; } ;;
    *) echo "--device is $device; give cuda or cpu" >&2; exit 2 ;;
esac
[ -z "$reference" ] || [ -f "$reference" ] || { echo "--reference $reference is no file; name the authors' MPNCOV.py" >&2; exit 2; }
[ -z "${TIMM_TESTS_DIR:-}" ] || [ -f "$TIMM_TESTS_DIR/test_models.py" ] ||
    { echo "TIMM_TESTS_DIR is $TIMM_TESTS_DIR, which holds no test_models.py" >&2; exit 2; }

if [ -n "$quick" ]; then  # a copy of the page, so that the last step is tried as well
    docs="${docs:-$(mktemp -d)}"
    [ "$docs" != "$root/docs" ] || { echo "--quick measures nothing worth a page; give another --output than docs" >&2; exit 2; }
fi
docs="${docs:-$root/docs}"
tables="$docs/performance"
mkdir -p "$tables"
[ -f "$docs/performance.md" ] || cp docs/performance.md "$docs"
failed=()

# part NAME SECONDS COMMAND...: ends the command after that time; rows that it has written stay.
part() {
    local name="$1" limit="$2" start=$SECONDS code=0
    shift 2
    timeout "$limit" "$@" || code=$?
    echo "== $name: $((SECONDS - start)) s of at most $limit" >&2
    case $code in 0) ;; 124) failed+=("$name ended after $limit s") ;; *) failed+=("$name failed") ;; esac
}
# bench NAME SECONDS SCRIPT OPTIONS...
bench() {
    local name="$1" limit="$2" script="tools/bench/bench_$3.py"
    shift 3
    part "$name" "$limit" "$python" "$script" --device "$device" --output "$tables" "$@"
}

# Seconds below are per part: --seconds stops new rows, the limit before it ends a row that hangs. They sum to 470.
if [ -z "$quick" ]; then
    pooling=(--modes float32 tf32 bfloat16 float16 channels_last graphs compiled --rows 0 1 2 3 6 7 8 9 10 11 12
        --without eigh --rounds 15 --seconds 105)
    models=(--modes channels_last channels_last+bfloat16 channels_last+tf32 channels_last+float16
        channels_last+bfloat16+graphs float32 --batch-size 128 256 --rows 4 3 1 8 --rounds 5 --seconds 115)
    compiled=(--modes channels_last+compiled channels_last+bfloat16+compiled --batch-size 128 --rows 1 --rounds 5 --seconds 40)
    precision=(--batch-size 4)
    tests="(shufflenet_v2_x1_0_gcp or resnet18_gcp) and not d128"
else
    small=(--model test_resnet_gcp --img-size 32 --num-classes 10 --rounds 1)
    gpu=()
    [ "$device" = cpu ] || gpu=(tf32 bfloat16+graphs)
    pooling=(--shape 2 16 5 --rounds 1 --compile-backend aot_eager
        --modes float32 bfloat16 float16 channels_last compiled "${gpu[@]}")
    models=("${small[@]}" --batch-size 2 4 --modes channels_last float32 bfloat16 float16 "${gpu[@]}")
    compiled=("${small[@]}" --batch-size 2 --modes channels_last+compiled --compile-backend aot_eager)
    precision=(--batch-size 1 --dim 16)
    tests="test_model_forward and shufflenet_v2_x1_0_gcp and not d128"
fi
limits=(130 140 100 40 60)
[ -z "$reference" ] || pooling+=(--reference "$reference")
bench pooling "${limits[0]}" pooling "${pooling[@]}"
bench models "${limits[1]}" models "${models[@]}"
bench "compiled models" "${limits[2]}" models --name models_compiled "${compiled[@]}"
bench precision "${limits[3]}" precision "${precision[@]}"

if [ -n "${TIMM_TESTS_DIR:-}" ]; then
    log="$tables/timm_tests_${device%%:*}.log"
    timm_tests() {
        TORCH_DEVICE="$device" GITHUB_ACTIONS=true timeout "${limits[4]}" "$python" -m pytest -q -p timm_gcp \
            -p no:cacheprovider -c /dev/null --rootdir "$TIMM_TESTS_DIR" --confcutdir "$TIMM_TESTS_DIR" \
            "$TIMM_TESTS_DIR/test_models.py" -k "$tests" >"$log" 2>&1
    }
    timm_tests
    code=$?
    tail -n 3 "$log"
    if [ $code = 0 ]; then
        printf "timm's \`test_models.py\` on %s, \`-k \"%s\"\`: %s\n" "$device" "$tests" "$(tail -n 1 "$log")" \
            >"$tables/timm_tests_${device%%:*}.part"
        mv "$tables/timm_tests_${device%%:*}.part" "$tables/timm_tests_${device%%:*}.md"
        rm "$log"
    else
        failed+=("timm's tests ended with code $code, see $log")
    fi
else
    echo "TIMM_TESTS_DIR is not set: timm's own tests were left out" >&2
fi

"$python" tools/bench/performance_page.py --docs "$docs" || failed+=("the page was not written")
echo "$SECONDS s; tables in $tables, page in $docs/performance.md" >&2
if [ ${#failed[@]} -gt 0 ]; then
    printf '%s\n' "${failed[@]}" >&2
    exit 1
fi
