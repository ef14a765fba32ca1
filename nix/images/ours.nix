# Our layer, the same bytes in every image: the engine plugin, what it stands on, the CPU engine and
# the sources of the row store, which the image's own compiler builds at first start. Neither pins
# nor profiles nor digests are in it: no image has to name itself.
{ lib, machinery }:
let
  root = ../..;
  inside = "opt/dsv41/src";
  project = (lib.importTOML ../../pyproject.toml).project;
  group = name: entries: ''
    [${name}]
    ${lib.concatStringsSep "\n" (lib.mapAttrsToList (key: value: "${key} = ${value}") entries)}
  '';
  info = name: text: {
    type = "file";
    to = "${inside}/python/dsv41-${project.version}.dist-info/${name}";
    inherit text;
  };
in
{
  # what PYTHONPATH of an image must have
  search = "/${inside}/python";
  labels = image: tree: {
    "org.opencontainers.image.title" = "dsv41-${image}";
    "org.opencontainers.image.version" = project.version;
    "dsv41.image" = image;
    # the engine build that plan and the preflight know by this name
    "dsv41.tree" = tree;
  };

  layer = machinery.layer {
    name = "dsv41";
    sources = [
      {
        type = "tree";
        owner = "dsv41";
        to = inside;
        path = "${lib.fileset.toSource {
          inherit root;
          fileset = lib.fileset.unions (
            map (name: root + "/python/dsv41/${name}") [
              "__init__.py"
              "adapters"
              "codes.toml"
              "errors.py"
              "geometry"
              "guards"
              "local/__init__.py"
              "local/engine"
              "local/fixture"
              "local/http"
              "local/model"
              "local/process.py"
              "local/rank.py"
              "local/serving.py"
              "local/stopping.py"
              "py.typed"
              "questions.py"
              "rows"
              "switches.py"
            ]
            ++ map (name: root + "/csrc/${name}") [
              "include"
              "src"
            ]
          );
        }}";
      }
      # engines find the plugin by its entry points
      (info "METADATA" ''
        Metadata-Version: 2.1
        Name: ${project.name}
        Version: ${project.version}
      '')
      (info "entry_points.txt" (
        lib.concatStringsSep "\n" (lib.mapAttrsToList group (project.entry-points or { }))
      ))
    ];
  };
}
