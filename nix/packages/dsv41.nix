# The operator command: pure Python, on rich, and on the row store for `pack` and `rows`.
{
  lib,
  python3,
  row-store,
}:
let
  inherit (lib.importTOML ../../pyproject.toml) project;
in
python3.pkgs.buildPythonApplication {
  pname = project.name;
  inherit (project) version;
  pyproject = true;
  src = lib.fileset.toSource {
    root = ../..;
    fileset = lib.fileset.unions [
      ../../pyproject.toml
      ../../README.md
      ../../LICENSE
      ../../NOTICE
      ../../python
      ../../scripts/completions.py
    ];
  };
  # the digests of our images go with the command that names them in Plans
  postPatch = ''
    cp ${../images/digests.json} python/dsv41/digests.json
  '';
  build-system = [ python3.pkgs.poetry-core ];
  dependencies = [
    python3.pkgs.rich
    row-store
  ];
  # where bash, zsh and fish look
  postInstall = ''
    PYTHONPATH=python:$PYTHONPATH python scripts/completions.py "$out/share"
  '';
  pythonImportsCheck = [ "dsv41.cli" ];
  meta = {
    inherit (project) description;
    license = lib.licenses.asl20;
    mainProgram = "dsv41";
  };
}
