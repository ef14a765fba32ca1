# FlashInfer's modules for a Spark (sm_121a), compiled on another machine: what a layer `aot` of the engine
# images is made of. modules.json says which ones, and what the others would cost. The compiler of CUDA runs
# natively and makes arm64 code with a g++ for that; FlashInfer's own build.ninja files say how. They were
# written by FlashInfer in the image (make test-image holds them to that).
{
  lib,
  pkgs,
  bases,
  # a g++ that makes arm64 code; check_library refuses what needs a newer C library than the image's
  cross ? pkgs.pkgsCross.aarch64-multiplatform.stdenv.cc,
  # memory: up to 6.5 GB a job for CUTLASS modules
  jobs ? 1,
  # names; by default those that are built here
  modules ? map (m: m.name) (lib.filter (m: m.built) listed.modules),
  listed ? lib.importJSON ./flashinfer-aot/modules.json,
}:
let
  machinery = import ../images/machinery.nix { inherit lib pkgs bases; };
  packages = import ../images/packages.nix { inherit lib pkgs machinery; };
  lock = lib.importJSON ../images/engine/wheels-sglang-arm64.json;
  tools = lib.importJSON ./flashinfer-aot/wheels-amd64.json;
  wheel =
    name: "${packages.wheel lock.python (lib.head (lib.filter (w: w.name == name) lock.wheels))}";
in
if pkgs.stdenv.hostPlatform.system != "x86_64-linux" then
  pkgs.runCommand "flashinfer-aot-sm121" { passthru = { inherit (listed) flashinfer; }; } ''
    echo "flashinfer-aot-sm121 is compiled on x86-64: its lock has the compiler of CUDA for that alone." >&2
    exit 1
  ''
else
  pkgs.runCommand "flashinfer-aot-sm121"
    {
      nativeBuildInputs = [
        pkgs.ninja
        pkgs.python3
      ];
      # the release that the modules are of
      passthru = { inherit (listed) flashinfer; };
      spec = builtins.toJSON {
        inherit jobs;
        stub = "libcuda.so";
        compiler = "${cross}/bin/${cross.targetPrefix}g++";
        strip = "${cross.bintools}/bin/${cross.targetPrefix}strip";
        host = map (w: "${packages.wheel tools.python w}") tools.wheels;
        target = map wheel [
          "flashinfer-python"
          "apache-tvm-ffi"
          "nvidia-cuda-runtime"
          "nvidia-cuda-crt"
          "nvidia-cuda-nvcc"
          "nvidia-cuda-cccl"
          "nvidia-cuda-profiler-api"
          "nvidia-cublas"
          "nvidia-cuda-nvrtc"
          "nvidia-curand"
        ];
        ninja = lib.genAttrs modules (name: "${./flashinfer-aot + "/${name}.ninja"}");
      };
      passAsFile = [ "spec" ];
    }
    ''
      mkdir work && cd work
      python3 ${../images/tools/stub_library.py} ${wheel "nvidia-cuda-runtime"} \
        nvidia/cu13/include/cuda.h libcuda.so.1 aarch64 libcuda.so
      python3 ${./flashinfer-aot/build.py} "$specPath" "$out"
      for library in "$out"/*/*.so; do
        python3 ${./check_library.py} "$library" 2.36
      done
    ''
