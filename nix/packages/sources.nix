# The trees of the recipe's images, from pinned sources: sglang/ (branch dsv4.1 with RoCEnante), b12x/
# (for RoCEnante, with roce_ring) and b12x_next/ (for the MoE kernels). Built where the network is.
{
  lib,
  runCommand,
  python3,
  patch,
  pins,
}:
let
  inherit (pins) commit file tree;
  # sparkring's path-aware RoCEnante is exactly these
  ring = [
    "__init__.py"
    "_allgather_cute.py"
    "_cute_intrinsics.py"
    "_oneshot_cute.py"
    "_path_config.py"
    "_proxy.py"
    "_roce_proxy.c"
    "api.py"
    "roce_oneshot.py"
  ];
  # applied in this order; the digest of all four together names the build
  next = [
    "compact-n64-m64"
    "prequant-input"
    "barrier-zero"
    "det-triton-planner"
  ];
in
runCommand "dsv41-sources"
  {
    nativeBuildInputs = [
      patch
      python3
    ];
    spec = builtins.toJSON {
      sglang = {
        tree = "${tree "sglang"}";
        commit = commit "sglang";
        patch = "${file "rocenante/sglang-rocenante.patch"}";
        flash_mla = "${file "rocenante/flash_mla_sm120.py"}";
      };
      b12x = {
        archive = "${file "rocenante/b12x-source.tar.gz"}";
        patch = "${file "recipe/roce-columns-gather.patch"}";
        ring = lib.genAttrs ring (name: "${file "roce_ring/${name}"}");
        ring_patch = "${file "recipe/roce_ring.patch"}";
      };
      b12x_next = {
        tree = "${tree "b12x"}";
        commit = commit "b12x";
        patches = map (name: "${file "recipe/b12x_next-${name}.patch"}") next;
      };
    };
    passAsFile = [ "spec" ];
  }
  ''
    python3 ${./sources.py} "$specPath" "$out"
  ''
