# The development shell: what `make` needs, with the locked packages in the place of .venv.
{ pkgs, packages }:
pkgs.mkShell {
  packages = [
    packages.dev-env
    pkgs.cmake
    pkgs.curl
    pkgs.fish
    pkgs.gcc
    pkgs.git
    pkgs.gnumake
    pkgs.ninja
    pkgs.openssh
    pkgs.patch
    pkgs.patchelf
    pkgs.shellcheck
    pkgs.zsh
  ];
  # make then sets nothing up; the working tree stands before the dsv41 that the environment holds
  shellHook = ''
    export DSV41_VENV=${packages.dev-env}/bin
    export PYTHONPATH=$PWD/python
  '';
}
