# nixpkgs' NCCL, at the pinned revision and with sparkring's patches, for rings without a switch. The
# library is mounted into an image, so it must stand without a path of the store and with the image's
# glibc; the build checks both. It needs CUDA, which is unfree, and is built where the network is.
{
  lib,
  config,
  runCommand,
  patchelf,
  python3,
  cudaPackages,
  pins,
  # patches, strings that the patched library contains, and what switches them on
  variant ? (lib.importJSON ./nccl-variants.json).switchless-cycle,
  # the lowest of our images: Debian 12
  glibc ? "2.36",
}:
let
  # a file of sources.manifest, or of the input `sparkring` with a hash of its own
  patch =
    {
      pin ? null,
      path ? null,
      sha256 ? null,
    }:
    if pin != null then
      pins.file pin
    else
      runCommand (baseNameOf path) { file = "${pins.tree "sparkring"}/${path}"; } ''
        echo "${sha256}  $file" | sha256sum --check --quiet
        cp "$file" "$out"
      '';

  built = cudaPackages.nccl.overrideAttrs (old: {
    pname = "nccl-sparkring";
    version = "2.30.7-1";
    src = pins.tree "nccl";
    patches = (old.patches or [ ]) ++ map patch variant.patches;
    # the last one of a name counts
    makeFlags = (old.makeFlags or [ ]) ++ [
      "NVCC_GENCODE=-gencode=arch=compute_121,code=sm_121"
    ];
    nativeBuildInputs = (old.nativeBuildInputs or [ ]) ++ [
      patchelf
      python3
    ];
    # after the fixup, whose hooks add run paths
    doInstallCheck = true;
    installCheckPhase = ''
      library=$(readlink -f "$out/lib/libnccl.so.2")
      patchelf --remove-rpath "$library"
      python3 ${./check_library.py} "$library" ${glibc} ${lib.escapeShellArgs variant.markers}
    '';
    passthru = (old.passthru or { }) // {
      inherit variant;
    };
  });
in
# without this, every evaluation of the flake on a nixpkgs without unfree packages would stop here
if config.allowUnfree or false then
  built
else
  runCommand "nccl-sparkring" { } ''
    echo "nccl-sparkring is built with CUDA, which is unfree. To allow that:" >&2
    echo "  NIXPKGS_ALLOW_UNFREE=1 nix build --impure .#nccl-sparkring" >&2
    exit 1
  ''
