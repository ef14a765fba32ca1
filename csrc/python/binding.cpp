// The Python module: arguments checked, the GIL released, everything else in the core.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "dsv41_rows/row_store.hpp"

namespace py = pybind11;
using namespace dsv41;

namespace {

// Memory of a Python object by the buffer protocol, held until this is destroyed. Never a converted copy.
class Buffer {
 public:
  Buffer(const py::object& object, const char* name, const char* format, bool writable) {
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_CheckBuffer(object.ptr()) == 0) {
      throw py::type_error(std::string(name) + ": expected an array with the buffer protocol");
    }
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) {
      const std::string why = py::error_already_set().what();
      throw py::value_error(std::string(name) + ": expected " + (writable ? "a writable, " : "a ") +
                            "C-contiguous array: " + why);
    }
    const std::string found = view_.format == nullptr ? "B" : view_.format;
    if (found.size() != 1 || std::string(format).find(found) == std::string::npos) {
      PyBuffer_Release(&view_);
      throw py::type_error(std::string(name) + ": expected items of format " + format + ", found " + found);
    }
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { PyBuffer_Release(&view_); }

  void expect_shape(const char* name, const std::vector<py::ssize_t>& shape) const {
    bool same = view_.ndim == static_cast<int>(shape.size());
    for (std::size_t i = 0; same && i < shape.size(); ++i) same = view_.shape[i] == shape[i];
    if (!same) throw py::value_error(std::string(name) + ": expected shape " + text(shape) + ", found " + text(found()));
  }

  std::vector<py::ssize_t> found() const { return {view_.shape, view_.shape + view_.ndim}; }
  template <typename T>
  T* data() const { return static_cast<T*>(view_.buf); }

 private:
  static std::string text(const std::vector<py::ssize_t>& shape) {
    std::string out = "[";
    for (const py::ssize_t n : shape) out += (out.size() > 1 ? ", " : "") + std::to_string(n);
    return out + "]";
  }

  Py_buffer view_{};
};

struct Arguments {
  Arguments(const py::object& ids, const py::object& weights, const py::object& scales)
      : ids(ids, "ids", "lq", false), weights(weights, "weights", "B", true), scales(scales, "scales", "B", true) {
    const std::vector<py::ssize_t> shape = this->ids.found();
    const py::ssize_t n = shape.empty() ? 0 : shape[0];
    this->ids.expect_shape("ids", {n});
    this->weights.expect_shape("weights", {n, static_cast<py::ssize_t>(kWeightBytes)});
    this->scales.expect_shape("scales", {n, static_cast<py::ssize_t>(kScaleBytes)});
    count = static_cast<std::size_t>(n);
  }
  Buffer ids, weights, scales;
  std::size_t count = 0;
};

class PyTicket {
 public:
  PyTicket(RowStore& store, std::unique_ptr<Arguments> held) : held_(std::move(held)) {
    const py::gil_scoped_release release;
    ticket_.emplace(store.submit(held_->ids.data<std::int64_t>(), held_->count, held_->weights.data<std::uint8_t>(),
                                 held_->scales.data<std::uint8_t>()));
  }
  ~PyTicket() {
    const py::gil_scoped_release release;
    ticket_.reset();
  }
  void wait(std::optional<double> timeout) {
    const py::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(mutex_);
    ticket_->wait(timeout ? std::max(*timeout, 0.0) : -1);
  }
  bool done() {
    const py::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(mutex_);
    return ticket_->done();
  }

 private:
  std::unique_ptr<Arguments> held_;
  std::mutex mutex_;
  std::optional<Ticket> ticket_;
};

py::object loads(const std::string& text) { return py::module_::import("json").attr("loads")(text); }

// Python may interrupt long work at every report of progress.
Progress report(const py::object& progress) {
  return [&progress](std::uint64_t done, std::uint64_t total) {
    const py::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (!progress.is_none()) progress(done, total);
  };
}

std::unique_ptr<RowStore> open(const std::string& path, const std::string& engine, unsigned threads, unsigned depth,
                               std::uint64_t cache_bytes, const std::vector<std::uint64_t>& order_bounds,
                               std::uint32_t layer, std::uint32_t rank, std::uint32_t tp,
                               const std::string& partition, const std::optional<std::string>& source_digest,
                               const std::optional<std::string>& revision) {
  const OpenOptions options{{layer, rank, tp, partition, source_digest.value_or(""), revision.value_or("")},
                            engine, threads, depth, cache_bytes, order_bounds};
  const py::gil_scoped_release release;
  return std::make_unique<RowStore>(path, options);
}

void lookup(RowStore& store, const py::object& ids, const py::object& weights, const py::object& scales) {
  const Arguments held(ids, weights, scales);
  const py::gil_scoped_release release;
  store.lookup(held.ids.data<std::int64_t>(), held.count, held.weights.data<std::uint8_t>(),
               held.scales.data<std::uint8_t>());
}

using Ranges = std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>>;
using RecordsTuple = std::tuple<std::string, std::uint64_t, std::uint64_t, std::uint64_t>;

bool pack_rows(const std::string& source, const std::string& target, std::uint32_t layer, std::uint32_t rank,
               std::uint32_t tp, const std::string& partition, std::uint64_t total_rows, const Ranges& ranges,
               const std::string& revision, const py::object& progress, const std::optional<RecordsTuple>& records,
               std::uint64_t chunk_pages, std::uint64_t journal_chunks, bool made) {
  PackOptions options;
  options.source = source;
  options.target = target;
  options.layer = layer;
  options.rank = rank;
  options.tp = tp;
  options.partition = partition;
  options.total_rows = total_rows;
  options.revision = revision;
  options.progress = report(progress);
  options.chunk_pages = chunk_pages;
  options.journal_chunks = journal_chunks;
  options.made = made;
  if (records) std::tie(options.records.path, options.records.data_begin, options.records.first_row, options.records.end_row) = *records;
  for (const auto& [lo, hi, base] : ranges) options.ranges.push_back({lo, hi, base});
  const py::gil_scoped_release release;
  return pack(options);
}

py::object verify_rows(const std::string& path, const py::object& progress) {
  std::string text;
  {
    const Progress callback = report(progress);
    const py::gil_scoped_release release;
    text = verification_json(verify(path, callback));
  }
  return loads(text);
}

void add_error(py::module_& m) {
  static py::handle type = py::exception<RowError>(m, "RowsError", PyExc_RuntimeError).release();
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const RowError& error) {
      if (error.kind() == Kind::timeout) return PyErr_SetString(PyExc_TimeoutError, error.what());
      py::object instance = type(error.what());
      instance.attr("kind") = kind_name(error.kind());
      PyErr_SetObject(type.ptr(), instance.ptr());
    }
  });
}

}  // namespace

PYBIND11_MODULE(_core, m, py::mod_gil_not_used()) {
  add_error(m);
  m.def("engines", &engine_names);
  py::class_<PyTicket>(m, "Ticket")
      .def("wait", &PyTicket::wait, py::arg("timeout") = py::none())
      .def_property_readonly("done", &PyTicket::done);
  py::class_<RowStore>(m, "RowStore")
      .def_static("open", &open, py::arg("path"), py::kw_only(), py::arg("engine") = "auto", py::arg("threads") = 0,
                  py::arg("depth") = 0, py::arg("cache_bytes") = 0, py::arg("order_bounds") = std::vector<std::uint64_t>(),
                  py::arg("layer"), py::arg("rank"), py::arg("tp"), py::arg("partition"),
                  py::arg("source_digest") = py::none(), py::arg("revision") = py::none())
      .def("lookup", &lookup, py::arg("ids"), py::arg("weights"), py::arg("scales"))
      .def("submit", [](RowStore& store, const py::object& ids, const py::object& weights, const py::object& scales) {
             return std::make_unique<PyTicket>(store, std::make_unique<Arguments>(ids, weights, scales));
           }, py::arg("ids"), py::arg("weights"), py::arg("scales"))
      .def("stats", [](const RowStore& store) { return loads(store.stats_json()); })
      .def("close", &RowStore::close, py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("layer", [](const RowStore& store) { return store.header().layer; })
      .def_property_readonly("rank", [](const RowStore& store) { return store.header().rank; })
      .def_property_readonly("tp", [](const RowStore& store) { return store.header().tp; })
      .def_property_readonly("partition", [](const RowStore& store) { return store.header().partition; })
      .def_property_readonly("local_rows", [](const RowStore& store) { return store.header().local_rows; })
      .def_property_readonly("total_rows", [](const RowStore& store) { return store.header().total_rows; });
  m.def("pack", &pack_rows, py::kw_only(), py::arg("source"), py::arg("target"), py::arg("layer"), py::arg("rank"),
        py::arg("tp"), py::arg("partition"), py::arg("total_rows"), py::arg("ranges"), py::arg("revision") = "",
        py::arg("progress") = py::none(), py::arg("records") = py::none(), py::arg("chunk_pages") = PackOptions().chunk_pages,
        py::arg("journal_chunks") = PackOptions().journal_chunks, py::arg("made") = false);
  m.def("verify", &verify_rows, py::arg("path"), py::kw_only(), py::arg("progress") = py::none());
  m.def("inspect", [](const std::string& path) { return loads(header_json(inspect(path))); }, py::arg("path"));
  m.def("source", [](const std::string& path, std::uint32_t layer) { return loads(source_json(read_source(path, layer))); },
        py::arg("path"), py::arg("layer"));
}
