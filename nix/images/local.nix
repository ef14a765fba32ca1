# image-local: the CPU engine on a Debian 12 root, made of locked packages alone.
{
  lib,
  machinery,
  packages,
  debian,
  ours,
}:
let
  prefix = "opt/dsv41";
  site = "${prefix}/lib/python3.11/site-packages";
  listed = lib.importJSON ./local/layers.json;

  layersOf =
    arch:
    let
      lock = kind: lib.importJSON (./local + "/${kind}-${arch}.json");
      wheels =
        only:
        packages.wheels {
          lock = lock "wheels";
          inherit prefix site only;
        };
      layer =
        name: sources:
        machinery.layer {
          inherit name sources;
          listed = listed.${arch}.${name} or null;
        };
    in
    [
      (layer "root" (debian.root (lock "debs")))
      (layer "torch" (wheels (p: p.name == "torch")))
      (layer "python" (wheels (p: p.name != "torch") ++ debian.environment prefix))
    ];

  build =
    arch:
    machinery.image {
      name = "local";
      inherit arch;
      layers = layersOf arch ++ [ ours.layer ];
      config = {
        env = {
          PATH = "/${prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin";
          PYTHONPATH = ours.search;
          # the row store is compiled into it once; mount a folder to keep it
          XDG_CACHE_HOME = "/cache/xdg";
          HOME = "/cache";
          LANG = "C.UTF-8";
        };
        cmd = [
          "python"
          "-m"
          "dsv41.local.rank"
          "--help"
        ];
        labels = ours.labels "local" "local";
      };
    };
  both = lib.genAttrs [ "amd64" "arm64" ];
in
# image-local is for the machine that builds it; image-local.arm64 is that one from any machine
arch: build arch // both build // { measured = both (a: machinery.measured (layersOf a)); }
