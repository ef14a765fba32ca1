# The stacks that the recipe's figures were measured on, rebuilt from its pins (sglang-recipe 1.4 of
# the publisher's Dockerfiles): image-tp3-recipe and image-tp4-recipe. Their base is an upstream
# image of 20 GB that is pinned by digest and trusted as it is.
{
  machinery,
  packages,
  ours,
  lib,
  sources,
}:
let
  base = machinery.pull "sglang-dev-dsv41";
  listed = lib.importJSON ./recipe/layers.json;
  # of the base: its SGLang, and a Python 3.12
  engine = "sgl-workspace/sglang/python";

  tree = owner: path: to: {
    type = "tree";
    inherit owner path to;
  };

  branch = machinery.layer {
    name = "sglang";
    sources = [
      # the base's own files must not show through: the branch has fewer of some folders
      {
        type = "replace";
        to = engine;
      }
      (tree "sglang" "${sources}/sglang/python" engine)
    ];
  };
  # two revisions of b12x beside each other: one for RoCEnante, one for the MoE kernels
  b12x = machinery.layer {
    name = "b12x";
    sources = [
      (tree "b12x" "${sources}/b12x" "opt/b12x")
      (tree "b12x_next" "${sources}/b12x_next" "opt/b12x_next")
    ];
  };
  # a folder of their own before the base's site-packages: what the base has of the same names stays
  # where it is, hidden, and importlib.metadata finds these first
  kernels = machinery.layer {
    name = "kernels";
    listed = listed.kernels or null;
    sources = packages.wheels {
      lock = lib.importJSON ./recipe/wheels-arm64.json;
      prefix = "opt/dsv41";
      site = "opt/dsv41/kernels";
    };
  };

  search = lib.concatStringsSep ":";
in
{
  image-tp3-recipe = machinery.image {
    name = "tp3-recipe";
    inherit base;
    inherit (base) arch;
    layers = [ ours.layer ];
    config = {
      prepend.PYTHONPATH = ours.search;
      labels = ours.labels "tp3-recipe" "sglang-base";
    };
  };

  image-tp4-recipe = machinery.image {
    name = "tp4-recipe";
    inherit base;
    inherit (base) arch;
    layers = [
      branch
      b12x
      kernels
      ours.layer
    ];
    config = {
      prepend.PYTHONPATH = search [
        ours.search
        "/opt/dsv41/kernels"
        "/opt/b12x"
        "/opt/b12x_next"
      ];
      labels = ours.labels "tp4-recipe" "sglang-branch";
    };
  }
  // {
    measured = machinery.measured [ kernels ];
  };
}
