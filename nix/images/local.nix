# image-local: the CPU engine on a Debian 12 root, made of locked packages alone.
{
  lib,
  machinery,
  packages,
  ours,
}:
let
  prefix = "opt/dsv41";
  site = "${prefix}/lib/python3.11/site-packages";
  listed = lib.importJSON ./local/layers.json;

  link = to: target: {
    type = "link";
    inherit to target;
  };
  file = to: text: {
    type = "file";
    inherit to text;
  };

  # what maintainer scripts would make, which never run here
  made = [
    (link "bin" "usr/bin")
    (link "sbin" "usr/sbin")
    (link "lib" "usr/lib")
    (link "lib64" "usr/lib64")
    (file "etc/passwd" ''
      root:x:0:0:root:/root:/bin/sh
      nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
    '')
    (file "etc/group" ''
      root:x:0:
      nogroup:x:65534:
    '')
    {
      type = "dir";
      to = "cache";
      mode = "1777";
    }
  ];
  # a virtual environment: .pth files of site-packages count, and /usr's packages do not
  environment = [
    (link "${prefix}/bin/python" "/usr/bin/python3.11")
    (link "${prefix}/bin/python3" "python")
    (file "${prefix}/pyvenv.cfg" ''
      home = /usr/bin
      include-system-site-packages = false
      version = 3.11
    '')
  ];

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
      (layer "root" (
        packages.debs {
          lock = lock "debs";
          # the licenses in usr/share/doc stay
          exclude = [
            "usr/share/info"
            "usr/share/locale"
            "usr/share/man"
          ];
        }
        ++ made
      ))
      (layer "torch" (wheels (p: p.name == "torch")))
      (layer "python" (wheels (p: p.name != "torch") ++ environment))
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
