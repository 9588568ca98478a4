// Tensors in NumPy's files, and the comparison of a program's results with those expected.
#pragma once

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>

#include "ttnn-tensor.hpp"

namespace ttnn {

static_assert(std::endian::native == std::endian::little, "the files hold little-endian numbers");

namespace files {

// What a file's header says.
struct Header {
  std::string descr;
  bool fortran = false;
  Dims shape;
  std::size_t begin = 0;
};

inline std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  require(file.good(), [&] { return "cannot read " + path + "; run the program in the folder it was exported to"; });
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The text behind `'key':`.
inline std::string entry(const std::string& header, const std::string& key, const std::string& path) {
  const std::size_t at = header.find("'" + key + "':");
  require(at != std::string::npos, [&] { return path + ": the header has no " + key; });
  const std::size_t begin = header.find_first_not_of(' ', at + key.size() + 3);
  require(begin != std::string::npos, [&] { return path + ": the header ends at " + key; });
  return header.substr(begin);
}

inline Header header_of(const std::string& bytes, const std::string& path) {
  require(bytes.size() >= 12 && bytes.compare(0, 6, "\x93NUMPY") == 0, [&] { return path + " is no .npy file"; });
  const int version = bytes[6];
  require(version == 1 || version == 2 || version == 3,
          [&] { return path + ": unknown version " + std::to_string(version); });
  std::size_t length = 0;
  const std::size_t width = version == 1 ? 2 : 4;
  for (std::size_t i = width; i-- > 0;) length = length << 8 | static_cast<unsigned char>(bytes[8 + i]);
  Header header;
  header.begin = 8 + width + length;
  require(header.begin <= bytes.size(), [&] { return path + " ends within its header"; });
  const std::string text = bytes.substr(8 + width, length);
  const std::string descr = entry(text, "descr", path);
  header.descr = descr.substr(1, descr.find('\'', 1) - 1);
  header.fortran = entry(text, "fortran_order", path).starts_with("True");
  const std::string shape = entry(text, "shape", path);
  for (std::size_t at = 1; at < shape.size() && shape[at] != ')';) {
    if (shape[at] < '0' || shape[at] > '9') {
      ++at;
      continue;
    }
    std::size_t used = 0;
    header.shape.push_back(std::stoll(shape.substr(at), &used));
    at += used;
  }
  return header;
}

// How NumPy names a type; those it does not know are unsigned integers of the same bits.
inline std::string descr_of(const Traits& t, DataType type) {
  if (is_bool(type)) return "|b1";
  const int bytes = std::max(t.bits / 8, 1);
  const bool known = t.bits >= 8 && (!is_float(type) || t.bits > 16 || type == DataType::FLOAT16);
  const char kind = known && is_float(type) ? 'f' : known && t.is_signed ? 'i' : 'u';
  return std::string(bytes == 1 ? "|" : "<") + kind + std::to_string(bytes);
}

template <class Raw>
Raw raw_at(const char* at) {
  Raw raw;
  std::memcpy(&raw, at, sizeof raw);
  return raw;
}

inline uint64_t bits_at(const char* at, std::size_t width) {
  uint64_t bits = 0;
  std::memcpy(&bits, at, width);
  return bits;
}

inline Array decoded(const char* at, DataType type, const Dims& shape) {
  const Traits& t = traits(type);
  const std::size_t width = static_cast<std::size_t>(std::max(t.bits / 8, 1));
  Array out(type, shape);
  const int64_t n = out.size();
  for (int64_t i = 0; i < n; ++i, at += width) {
    if (t.kind == Kind::DOUBLE)
      out.data<double>()[i] = raw_at<double>(at);
    else if (t.kind == Kind::FLOAT && t.bits == 32)
      out.data<float>()[i] = raw_at<float>(at);
    else if (t.kind == Kind::FLOAT)
      out.data<float>()[i] = static_cast<float>(small_from_bits(bits_at(at, width), t));
    else
      out.data<int64_t>()[i] = static_cast<int64_t>(bits_at(at, width));
  }
  return finished(std::move(out));
}

inline Array read(const std::string& path, const Dims& shape, DataType type) {
  const std::string bytes = bytes_of(path);
  const Header header = header_of(bytes, path);
  const Traits& t = traits(type);
  const std::string descr = descr_of(t, type);
  require(header.descr == descr,
          [&] { return path + " holds " + header.descr + ", but " + t.name + " is held as " + descr; });
  require(!header.fortran || shape.size() < 2, [&] { return path + " is in column order; write it in row order"; });
  require(header.shape == shape,
          [&] { return path + " has the shape " + show(header.shape) + ", not " + show(shape); });
  const std::size_t size = static_cast<std::size_t>(volume(shape) * std::max(t.bits / 8, 1));
  require(bytes.size() - header.begin == size, [&] {
    return path + " holds " + std::to_string(bytes.size() - header.begin) + " bytes of data, not " +
           std::to_string(size);
  });
  return decoded(bytes.data() + header.begin, type, shape);
}

// How inputs are made instead of being loaded; empty if they are loaded.
inline std::string& making() {
  static std::string how;
  return how;
}

// Normal floats, integers from 0 to 9, which index most tables, and coins.
inline Array random(DataType type, const Dims& shape) {
  static std::mt19937_64 draw(0);
  std::normal_distribution<double> normal;
  const Traits& t = traits(type);
  const int digits = t.bits - (t.is_signed ? 1 : 0);
  const uint64_t count = digits < 4 ? uint64_t{1} << digits : 10;
  Array out(type, shape);
  by_kind(type, [&](auto zero) {
    using C = decltype(zero);
    C* made = out.data<C>();
    for (int64_t i = 0; i < out.size(); ++i)
      made[i] = is_float(type) ? static_cast<C>(normal(draw)) : static_cast<C>(draw() % count);
  });
  return finished(std::move(out));
}

// An input from a file, or made; of one with a piece for each device, all pieces are equal, as copies have to be.
inline Array input(const std::string& path, const Dims& shape, DataType type, bool in_pieces) {
  if (making().empty()) return read(path, shape, type);
  if (making() == "zeros") return filled(type, shape, 0);
  if (!in_pieces) return random(type, shape);
  const Array one = random(type, Dims(shape.begin() + 1, shape.end()));
  Dims row = shape;
  row[0] = 1;
  return joined(Arrays(static_cast<std::size_t>(shape[0]), one.as(row)), 0);
}

}  // namespace files

// Makes inputs instead of loading them: "zeros" or "random".
inline void make_inputs(const std::string& how) {
  require(how == "zeros" || how == "random", [&] { return "inputs are made of zeros or random, not " + how; });
  files::making() = how;
}

// A whole tensor for the host; with a device, one piece for each, stacked in the file.
inline Tensor load_tensor(const std::string& path, const Shape& shape, Layout layout, DataType dtype,
                          const Device& device, const Memory& = std::nullopt) {
  const Array whole = files::input(path, shape.dims(), dtype, device.has_value());
  if (!device) return Tensor(whole).laid(layout);
  distributed::MeshDevice& mesh = device->get();
  const auto count = static_cast<int64_t>(mesh.num_devices());
  require(whole.rank() > 0 && whole.shape[0] == count, [&] { return path + " has not one piece for each device"; });
  std::vector<std::optional<Array>> shards;
  for (int64_t i = 0; i < count; ++i) {
    shards.push_back(piece(whole, 0, i, 1).as(Dims(whole.shape.begin() + 1, whole.shape.end())));
  }
  return Tensor(Place::DEVICES, &mesh, std::move(shards), layout);
}

// The elements of a constant that is stored in a file, one by one.
template <class T>
std::vector<T> load_elements(const std::string& path, const Shape& shape, DataType dtype) {
  const Array whole = files::read(path, shape.dims(), dtype);
  std::vector<T> made(static_cast<std::size_t>(whole.size()));
  by_kind(dtype, [&](auto zero) {
    const auto* from = whole.data<decltype(zero)>();
    std::transform(from, from + whole.size(), made.begin(), [](auto v) { return static_cast<T>(v); });
  });
  return made;
}

// --- checking --------------------------------------------------------------------------------------------------------

// A result as its file holds it: whole, or the pieces of all devices stacked.
inline Array as_stored(const Tensor& x) {
  if (x.place() == Place::HOST) return x.whole();
  Arrays parts;
  for (const auto& shard : x.shards()) {
    require(shard.has_value(), "a device holds nothing of a result");
    Dims one = shard->shape;
    one.insert(one.begin(), 1);
    parts.push_back(shard->as(one));
  }
  return joined(parts, 0);
}

inline double tolerance_of(int bits) {
  return bits == 64 ? 1e-10 : bits == 32 ? 1e-4 : bits == 16 ? 2e-2 : 2.5e-1;
}

struct Difference {
  bool good = true;
  double largest = 0;
  double allowed = 0;
};

template <class C>
Difference difference(const Array& got, const Array& expected, bool exact, int bits) {
  const C *a = got.data<C>(), *b = expected.data<C>();
  const int64_t n = got.size();
  Difference made;
  if (!exact && is_float(got.dtype)) {
    double scale = 1;
    for (int64_t i = 0; i < n; ++i) {
      const double size = std::fabs(static_cast<double>(b[i]));
      if (std::isfinite(size)) scale = std::max(scale, size);
    }
    made.allowed = tolerance_of(bits > 0 ? bits : traits(got.dtype).bits) * scale;
  }
  for (int64_t i = 0; i < n; ++i) {
    if (a[i] != a[i] && b[i] != b[i]) continue;
    if (a[i] == b[i]) {
      // Zeros of two signs are two numbers where nothing is rounded.
      if (exact && std::signbit(static_cast<double>(a[i])) != std::signbit(static_cast<double>(b[i])))
        made.good = false;
      continue;
    }
    const double apart = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    // A NaN or an infinity on one side only is never within a tolerance.
    made.largest = std::isfinite(apart) ? std::max(made.largest, apart) : std::numeric_limits<double>::infinity();
    if (!(apart <= made.allowed)) made.good = false;
  }
  return made;
}

inline bool check(const Tensor& result, std::size_t number, const std::string& path, bool exact, int bits) {
  const Array got = as_stored(result);
  const Array expected = files::read(path, got.shape, got.dtype);
  Difference found;
  by_kind(got.dtype, [&](auto zero) { found = difference<decltype(zero)>(got, expected, exact, bits); });
  std::printf("result %zu: %s%s, largest difference %g (allowed %g): %s\n", number, traits(got.dtype).name,
              show(got.shape).c_str(), found.largest, found.allowed, found.good ? "ok" : "WRONG");
  return found.good;
}

// Runs a program; with --check compares its results, those that are exact bit for bit. The others may differ by the
// rounding of floats of so many bits, or of their own type for 0. The exit code: 0, 1 for a wrong result, 2 for an error.
template <class Inputs, class Program>
int run_and_check(int argc, char** argv, Inputs inputs, Program program, const std::vector<std::string>& expected,
                  const std::vector<bool>& exact, const std::vector<int>& bits) {
  bool checking = false;
  try {
    for (int i = 1; i < argc; ++i) {
      const std::string option = argv[i];
      if (option == "--make-inputs" && i + 1 < argc) {
        make_inputs(argv[++i]);
      } else if (option == "--check") {
        checking = true;
      } else {
        std::fprintf(stderr, "usage: %s [--check | --make-inputs zeros|random]\n", argv[0]);
        return 2;
      }
    }
    require(!checking || files::making().empty(),
            "--check has nothing to compare with: inputs are made, and no file has their results");
    const std::vector<Tensor> results = program(inputs());
    bool good = true;
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (checking) {
        good = check(results[i], i, expected.at(i), exact.at(i), bits.at(i)) && good;
      } else {
        std::printf("result %zu: %s%s\n", i, traits(results[i].dtype()).name,
                    show(as_stored(results[i]).shape).c_str());
      }
    }
    return good ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
}

// The same where none was computed by way of narrower floats than its own.
template <class Inputs, class Program>
int run_and_check(int argc, char** argv, Inputs inputs, Program program, const std::vector<std::string>& expected,
                  const std::vector<bool>& exact) {
  return run_and_check(argc, argv, inputs, program, expected, exact, std::vector<int>(expected.size(), 0));
}

// The same where all results are exact, or none.
template <class Inputs, class Program>
int run_and_check(int argc, char** argv, Inputs inputs, Program program, const std::vector<std::string>& expected,
                  bool exact, const std::vector<int>& bits) {
  return run_and_check(argc, argv, inputs, program, expected, std::vector<bool>(expected.size(), exact), bits);
}

template <class Inputs, class Program>
int run_and_check(int argc, char** argv, Inputs inputs, Program program, const std::vector<std::string>& expected,
                  bool exact) {
  return run_and_check(argc, argv, inputs, program, expected, std::vector<bool>(expected.size(), exact));
}

}  // namespace ttnn
