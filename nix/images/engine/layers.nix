# The layers of an engine image, bottom to top: root, the wheels as partition.json cuts them, what
# wheels cannot ship. Above them where they are asked for: kernels compiled ahead of time, another
# NCCL.
{
  lib,
  machinery,
  packages,
  debian,
}:
let
  partition = lib.importJSON ./partition.json;
  # a path that two wheels bring -> the distribution that has it, or null: left out
  collisions = lib.importJSON ./collisions.json;
  # members whose hash in their wheel's own RECORD is not theirs; the wheel's is locked all the same
  amended = lib.importJSON ./records.json;
  prefix = "opt/dsv41";
  site = "${prefix}/lib/python3.11/site-packages";
  cuda = "${site}/nvidia/cu13";
  inherit (debian) link file;

  # What a driver's CUDA and the distribution's scripts would add. The stub of libcuda is for the
  # linker: no driver has the name without a number in its CDI specification on NixOS. It has the
  # functions of cuda.h, for Debian's g++ drops a library that defines nothing of what is called.
  fixups = lock: debLock: [
    (link "${cuda}/lib64" "lib")
    (link "${cuda}/lib/libcudart.so" "libcudart.so.13")
    (link "${cuda}/lib/libnvrtc.so" "libnvrtc.so.13")
    {
      type = "stub library";
      to = "${cuda}/lib/stubs/libcuda.so";
      soname = "libcuda.so.1";
      machine = "aarch64";
      wheel = "${packages.wheel lock.python (entry lock.wheels "nvidia-cuda-runtime")}";
      header = "nvidia/cu13/include/cuda.h";
    }
    # alternatives: FlashInfer calls c++
    (link "usr/bin/cc" "gcc")
    (link "usr/bin/c++" "g++")
    # without it glibc asks DNS for localhost before /etc/hosts
    (file "etc/nsswitch.conf" ''
      passwd: files
      group: files
      hosts: files dns
    '')
    {
      type = "certificates";
      to = "etc/ssl/certs/ca-certificates.crt";
      path = "${packages.deb debLock.snapshot (entry debLock.packages "ca-certificates")}";
    }
  ];

  entry = packages: name: lib.head (lib.filter (p: p.name == name) packages);

  # every wheel of the lock in one layer
  checked =
    lock:
    let
      placed = lib.concatMap (part: part.wheels) partition;
      places = wheel: lib.length (lib.filter (name: name == wheel.name) placed);
      amiss = lib.filter (wheel: places wheel != 1) lock.wheels;
    in
    if amiss == [ ] then
      partition
    else
      throw (
        "D400 nix/images/engine/partition.json has the wheel ${(lib.head amiss).name} in "
        + "${toString (places (lib.head amiss))} layers; expected 1. Fix: name it in one of them."
      );

  # In a layer that has a file for which another wheel's is taken, the rule that leaves it out. The
  # other one may be in another layer, where nothing has to give way.
  rulesOf =
    { lock, twice }:
    part:
    let
      winner = path: collisions.${path};
      fileOf = name: (entry lock.wheels name).file;
      loses = one: lib.any (name: name != winner one.path && lib.elem name part.wheels) one.owners;
      known = lib.filter (one: collisions ? ${one.path}) twice;
    in
    lib.listToAttrs (
      map (
        one:
        lib.nameValuePair "${site}/${one.path}" (
          if winner one.path == null then null else fileOf (winner one.path)
        )
      ) (lib.filter loses known)
    );
in
{
  inherit
    prefix
    site
    cuda
    fixups
    ;

  # `lock` of wheels, `debLock`, `twice` of the lock's contents, `listed` of layers.json
  layersOf =
    {
      lock,
      debLock,
      twice,
      listed,
    }:
    let
      layer =
        name: more:
        machinery.layer (
          {
            inherit name;
            listed =
              listed.${name} or (throw (
                "D401 nix/images/engine/layers.json does not list the layer ${name} of this engine. "
                + "Fix: scripts/image-layers.sh engine"
              ));
          }
          // more
        );
      wheels =
        part:
        layer part.name {
          rules = rulesOf { inherit lock twice; } part;
          sources = packages.wheels {
            inherit
              lock
              prefix
              site
              amended
              ;
            only = p: lib.elem p.name part.wheels;
          };
        };
    in
    [ (layer "root" { sources = debian.root debLock; }) ]
    ++ map wheels (checked lock)
    ++ [
      (layer "fix-ups" { sources = fixups lock debLock ++ debian.environment prefix; })
    ];

  # FlashInfer's modules compiled ahead of time: a folder NAME/NAME.so each, where it looks for them
  # before it compiles one (flashinfer/jit/env.py, FLASHINFER_AOT_DIR).
  kernels =
    aot:
    machinery.layer {
      name = "aot";
      sources = [
        {
          type = "tree";
          owner = "flashinfer-aot-sm121";
          to = "${site}/flashinfer/data/aot";
          path = "${aot}";
        }
      ];
    };

  # The one libnccl of an image, in place of the wheel's.
  nccl =
    source:
    let
      to = "${site}/nvidia/nccl/lib/libnccl.so.2";
    in
    machinery.layer {
      name = "nccl";
      replaces = [ to ];
      sources = [ (source to) ];
    };
}
