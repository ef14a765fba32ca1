# image-tp3, image-tp4, image-tp4-ring and image-tp4-cycle: an engine on a Debian 12 root, made of
# locked packages alone, for arm64.
{
  lib,
  machinery,
  packages,
  debian,
  ours,
  # an NCCL for rings without a switch: a derivation with lib/libnccl.so.2 for arm64
  nccl,
  # flashinfer-aot-sm121, or null: no image has an attribute `ahead`
  aot ? null,
}:
let
  locked = import ./. { inherit lib packages; };
  made = import ./layers.nix {
    inherit
      lib
      machinery
      packages
      debian
      ;
  };
  listed = lib.importJSON ./layers.json;
  inherit (made) prefix site cuda;

  # engine -> its layers, which images with the same engine share
  layersOf =
    engine: lock:
    made.layersOf {
      inherit lock;
      inherit (locked) debLock;
      inherit (lib.importJSON (./. + "/contents-${engine}.json")) twice;
      listed = listed.${engine} or { };
    };
  layers = lib.mapAttrs layersOf locked.wheelLocks;

  programs = {
    sglang = [ "sglang.launch_server" ];
    vllm = [
      "vllm.entrypoints.cli.main"
      "serve"
    ];
  };
  version =
    package: engine:
    (lib.head (lib.filter (w: w.name == package) locked.wheelLocks.${engine}.wheels)).version;

  # The image is read-only to its engine: what is compiled on the node goes below /cache, where a
  # folder of the node is mounted. The Plan says the same (dsv41/engines/container.py).
  caches = {
    HOME = "/cache";
    XDG_CACHE_HOME = "/cache/xdg";
    TRITON_CACHE_DIR = "/cache/triton";
    TILELANG_CACHE_DIR = "/cache/tilelang";
    FLASHINFER_WORKSPACE_BASE = "/cache/flashinfer";
    TORCHINDUCTOR_CACHE_DIR = "/cache/inductor";
    CUDA_CACHE_PATH = "/cache/nv";
    CUTE_DSL_CACHE_DIR = "/cache/cute-dsl";
    DG_JIT_CACHE_DIR = "/cache/deep-gemm";
    HF_HOME = "/cache/huggingface";
  };
  ownCaches = {
    sglang = {
      SGLANG_CACHE_DIR = "/cache/sglang";
      B12X_ROCE_CACHE_DIR = "/cache/b12x-roce";
    };
    vllm.VLLM_CACHE_ROOT = "/cache/vllm";
  };

  plain =
    {
      name,
      engine,
      # layers between the engine's and ours
      more ? [ ],
    }:
    machinery.image {
      inherit name;
      arch = "arm64";
      layers = layers.${engine} ++ more ++ [ ours.layer ];
      config = {
        env = {
          PATH = "/${prefix}/bin:/${cuda}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin";
          PYTHONPATH = ours.search;
          # DeepGEMM asserts it when it is imported
          CUDA_HOME = "/${cuda}";
          LANG = "C.UTF-8";
        }
        // caches
        // ownCaches.${engine};
        cmd = [
          "python3"
          "-m"
        ]
        ++ programs.${engine}
        ++ [ "--help" ];
        labels = ours.labels name "${engine}-${version engine engine}";
      };
    }
    // {
      inherit engine;
      # the same with other locks, to ask which layers a bump moves
      layersWith = layersOf engine;
      measured = machinery.measured layers.${engine};
    };

  # `ahead` is the same image with kernels that a node need not compile at its first start. They are
  # of one release of FlashInfer, which asks a module for no version when it loads it. Their layer is
  # not listed: another g++ may write other bytes, so the digest is that of who built them.
  image =
    { engine, ... }@asked:
    plain asked
    // lib.optionalAttrs (aot != null && aot.flashinfer == version "flashinfer-python" engine) {
      ahead = plain (asked // { more = asked.more or [ ] ++ [ (made.kernels aot) ]; });
    };

  # For a ring without a switch. `trial` is the same image with the wheel's own NCCL in the place of
  # the patched one: for whoever cannot build that. It is no image to serve with.
  ring =
    { name, engine }:
    let
      lock = locked.wheelLocks.${engine};
      wheel = lib.head (lib.filter (w: w.name == "nvidia-nccl-cu13") lock.wheels);
      patched = to: {
        type = "copy";
        owner = "nccl-sparkring";
        machine = "aarch64";
        path = "${nccl}/lib/libnccl.so.2";
        inherit to;
      };
      own = to: {
        type = "wheel";
        path = "${packages.wheel lock.python wheel}";
        inherit (wheel) file;
        inherit prefix site;
        only = [ to ];
      };
    in
    image {
      inherit name engine;
      more = [ (made.nccl patched) ];
    }
    // {
      trial = image {
        name = "${name}-trial";
        inherit engine;
        more = [ (made.nccl own) ];
      };
    };
in
{
  image-tp3 = image {
    name = "tp3";
    engine = "sglang";
  };
  image-tp4 = image {
    name = "tp4";
    engine = "sglang";
  };
  image-tp4-ring = ring {
    name = "tp4-ring";
    engine = "sglang";
  };
  image-tp4-cycle = ring {
    name = "tp4-cycle";
    engine = "vllm";
  };
}
