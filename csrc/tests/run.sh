#!/bin/sh
# The C++ tests: run.sh [sanitize | threads | fuzz | long | one-command | transform | arm64]; without a word, sanitize and one-command.
#   sanitize     everything below ASan and UBSan
#   threads      the lookups of many threads below TSan
#   fuzz         the parsers of header, journal and JSON by libFuzzer (Debian: clang), FUZZ_SECONDS each (20)
#   long         at least ten million verified random lookups (minutes)
#   one-command  the library by the command of dsv41_rows.h, used from C
#   transform    rows to pages in memory: bytes per second of processor time
#   arm64        compiled for aarch64, run by qemu-aarch64, which knows no kernel AIO
#                (Debian: g++-aarch64-linux-gnu, qemu-user)
# Build products and test files go to csrc/build/tests, on a disk that knows O_DIRECT.
set -eu
cd "$(dirname "$0")/.."
out=build/tests
files=$out/files-$$  # two runs at once have their own
strict="-Wall -Wextra -Werror"
cxx=g++
rm -rf "$files"
trap 'rm -rf "$files"' EXIT

compile() {  # compile NAME FLAGS: all of src/ and the test programs into $out/NAME
    mkdir -p "$out/$1" "$files"
    ls src/*.cpp tests/*.cpp | xargs -P 2 -I{} sh -c \
        'o="$0/$(basename {} .cpp).o"; [ "$o" -nt {} ] && [ -z "$(find src include tests -name "*.h*" -newer "$o")" ] ||
         $2 -std=c++17 $1 -pthread -Iinclude -Isrc -Itests -c {} -o "$o"' "$out/$1" "$2 $strict" "$cxx"
    for program in test_core test_file stress transform; do
        core=$(ls src/*.cpp | sed "s|src/\(.*\)\.cpp|$out/$1/\1.o|")
        $cxx $2 -pthread "$out/$1/$program.o" $core -o "$out/$1/$program"
    done
}

sanitize() {
    compile sanitized "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
    "$out/sanitized/test_core"
    "$out/sanitized/test_file" "$files"
    "$out/sanitized/stress" "$files" 40000 200000 uring aio pread
    tool_sanitized
}

tool_sanitized() {  # the C interface, from C, on the file that test_file left
    flags="-g -fsanitize=address,undefined -fno-sanitize-recover=all"
    gcc -std=c11 -D_DEFAULT_SOURCE $strict $flags -Iinclude -c tests/tool.c -o "$out/sanitized/tool.o"
    core=$(ls src/*.cpp | sed "s|src/\(.*\)\.cpp|$out/sanitized/\1.o|")
    g++ $flags -pthread "$out/sanitized/tool.o" $core -o "$out/sanitized/tool"
    for engine in uring aio pread; do
        for mode in lookup production thread narrow tickets; do  # after fork() the sanitizer's malloc may hang
            "$out/sanitized/tool" $mode "$files/small.rows" 14 1 2 pieces $engine 20 21 39 60 61 20 -1 0 \
                >"$files/said" 2>&1 || { cat "$files/said"; exit 1; }
        done
    done
    echo "tool: ok"
}

threads() {
    compile threads "-O1 -g -fsanitize=thread"
    "$out/threads/stress" "$files" 40000 ${LOOKUPS:-200000} uring aio pread
}

fuzz() {  # starts from pages of a packed file; what is found stays in $out/fuzz
    compile fast "-O2"
    "$out/fast/test_file" "$files"
    mkdir -p "$out/fuzz"
    flags="-std=c++17 -O1 -g -fno-sanitize-recover=all -pthread -Iinclude -Isrc"
    # one unit of all that is fuzzed, compiled once; the C interface is not
    for unit in src/*.cpp; do
        [ "$unit" = src/c_abi.cpp ] || echo "#include \"$PWD/$unit\""
    done >"$out/fuzz/whole.cpp"
    clang++ $flags -fsanitize=fuzzer-no-link,address,undefined -c "$out/fuzz/whole.cpp" -o "$out/fuzz/whole.o"
    for target in header journal safetensors; do
        mkdir -p "$out/fuzz/$target-corpus"
        clang++ $flags -fsanitize=fuzzer,address,undefined fuzz/$target.cpp "$out/fuzz/whole.o" -o "$out/fuzz/$target"
    done
    head -c 4096 "$files/small.rows" >"$out/fuzz/header-corpus/page"
    { head -c 4096 "$files/small.rows"; head -c 116 /dev/zero; } >"$out/fuzz/journal-corpus/journal"
    tail -c +9 "$files/small.safetensors" | head -c 300 >"$out/fuzz/safetensors-corpus/json"
    for target in header journal safetensors; do
        "$out/fuzz/$target" -max_total_time="${FUZZ_SECONDS:-20}" -max_len=8192 -print_final_stats=1 \
            -artifact_prefix="$out/fuzz/$target-" "$out/fuzz/$target-corpus"
    done
}

long() {
    compile fast "-O2"
    "$out/fast/stress" "$files" 2000000 10000000 uring aio pread
}

transform() {
    compile fast "-O2" >&2
    "$out/fast/transform" 512
}

arm64() {
    cxx=aarch64-linux-gnu-g++
    compile arm64 "-O2 -static"
    qemu-aarch64 "$out/arm64/test_core"
    qemu-aarch64 "$out/arm64/test_file" "$files"
    qemu-aarch64 "$out/arm64/stress" "$files" 4000 50000 pread
}

one_command() {
    mkdir -p "$out"
    g++ -std=c++17 -O2 -fPIC -shared -fvisibility=hidden -pthread -Iinclude src/*.cpp -o "$out/libdsv41_rows.so"
    gcc -std=c11 -D_DEFAULT_SOURCE $strict -Iinclude tests/tool.c -o "$out/tool" "$out/libdsv41_rows.so" -pthread \
        "-Wl,-rpath,$PWD/$out"
    status=0
    "$out/tool" lookup /nowhere 1 0 1 weighted auto 0 2>"$out/said" || status=$?
    [ "$status" = 7 ] && grep -q '^io: cannot open /nowhere (errno 2' "$out/said"
    echo "one command: ok"
}

case "${1:-all}" in
    sanitize) sanitize ;;
    threads) threads ;;
    fuzz) fuzz ;;
    long) long ;;
    one-command) one_command ;;
    transform) transform ;;
    arm64) arm64 ;;
    all) sanitize && one_command ;;
    *) echo "run.sh [sanitize | threads | fuzz | long | one-command | transform | arm64]" >&2; exit 2 ;;
esac
