#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "common/cuda_check.h"
#include "kernels/forward.h"
#include "kernels/forward_hopper.h"
#include "kernels/forward_weights.h"

namespace dpiframe {
namespace {

constexpr int kPiece = 8;  // columns
constexpr int kFieldPieces = 2;

int pieces_of(std::int64_t columns) {
  return static_cast<int>(columns / kPiece);
}

// The fields by 16 columns, halved between the blocks, and where in x0 each chunk's columns lie.
std::vector<int> place_fields(const ForwardModel& model, DataType type, ForwardArguments& a,
                              std::vector<ForwardField>& parts) {
  std::vector<int> columns;  // of x0, of each part
  for (std::size_t slot = 0; slot < model.fields.size(); ++slot) {
    const DeviceLookupField& field = model.fields[slot];
    const int pieces = pieces_of(field.dim);
    for (int piece = 0; piece == 0 || piece < pieces; piece += kFieldPieces) {
      const int own = std::min(kFieldPieces, pieces - piece);
      parts.push_back({static_cast<const char*>(field.table) + 16 * piece,
                       piece == 0 ? field.wide : nullptr, field.rows, field.oov_row,
                       static_cast<std::uint32_t>(field.dim * bytes_of(type)),
                       piece == 0 ? static_cast<std::int32_t>(slot) : -1, 0,
                       static_cast<std::uint8_t>(own), field.in_fm});
      a.ids_rows[columns.size()] = static_cast<std::uint16_t>(field.ids_row);
      columns.push_back(static_cast<int>(field.out_column) + piece * kPiece);
    }
  }
  std::vector<int> chunks;
  const int total = static_cast<int>(parts.size());
  a.fields_end[0] = (total + 1) / 2;
  a.fields_end[1] = total;
  for (int block = 0, f = 0; block < 2; ++block) {
    const auto first = static_cast<int>(chunks.size());
    for (; f < a.fields_end[block]; ++f) {
      parts[f].chunk = static_cast<std::uint16_t>(chunks.size());
      for (int piece = 0; piece < parts[f].pieces; ++piece)
        chunks.push_back(columns[f] + piece * kPiece);
    }
    a.zero_chunk[block] = -1;
    if ((chunks.size() - first) % 2 != 0) {
      a.zero_chunk[block] = static_cast<int>(chunks.size());
      chunks.push_back(-1);
    }
    a.chunks[block] = static_cast<int>(chunks.size()) - first;
  }
  return chunks;
}

// The first level's w with FM's sums as further rows: ones where a field has that number.
std::vector<float> with_fm(const ForwardModel& model, int num_fm) {
  const std::size_t own = std::size_t(model.levels[0].n) * model.x_columns;
  std::vector<float> w(own + std::size_t(num_fm) * model.x_columns);
  std::copy_n(model.levels[0].w, own, w.begin());
  for (const DeviceLookupField& field : model.fields)
    for (int d = 0; field.in_fm && d < num_fm; ++d)
      w[own + std::size_t(d) * model.x_columns + field.out_column + d] = 1.0f;
  return w;
}

void place_extras(ForwardArguments& a, int columns, int num_extras) {
  for (int quarter = 0, placed = 0; quarter < 4; ++quarter) {
    const int width =
        forward_first_column(columns, quarter + 1) - forward_first_column(columns, quarter);
    a.extras_column[quarter] = width;
    a.first_extra[quarter] = placed;
    placed += std::min(num_extras - placed, a.tile - width);
    a.first_extra[quarter + 1] = placed;
  }
}

// The extras, the levels' places and the head's numbers; returns each level's own columns.
std::vector<int> place_levels(const ForwardModel& model, int num_fm, ForwardArguments& a) {
  a.num_shifts = static_cast<int>(model.shifts.size());
  a.has_cross = model.has_cross ? 1 : 0;
  std::copy(model.shifts.begin(), model.shifts.end(), a.shifts);
  const int cross = a.num_shifts + a.has_cross;
  std::vector<int> columns;
  for (const ForwardLevel& level : model.levels) columns.push_back(level.n);
  columns[0] -= cross;
  a.tile = forward_tile(columns, cross + num_fm);
  a.num_levels = static_cast<int>(columns.size());
  place_extras(a, columns[0], cross + num_fm);
  a.report = model.report;
  a.num_report = model.num_report;
  a.num_slots = static_cast<int>(model.fields.size());
  a.bias = model.bias;
  return columns;
}

}  // namespace

ForwardPlan plan_forward(const ForwardModel& model, DataType type) {
  ForwardPlan plan{};
  int num_fm = 0;
  for (const DeviceLookupField& field : model.fields)
    if (field.in_fm) num_fm = static_cast<int>(field.dim);
  const std::vector<int> columns = place_levels(model, num_fm, plan.arguments);
  const std::vector<int> chunks = place_fields(model, type, plan.arguments, plan.fields);
  const std::vector<float> first = with_fm(model, num_fm);
  std::vector<float> first_bias(model.levels[0].n + num_fm);
  if (model.levels[0].bias != nullptr)
    std::copy_n(model.levels[0].bias, model.levels[0].n, first_bias.begin());
  std::vector<ForwardProduct> products;
  for (std::size_t l = 0; l < columns.size(); ++l)
    products.push_back({model.levels[l].n, l == 0 ? model.x_columns : columns[l - 1], columns[l],
                        model.levels[l].w, model.levels[l].bias});
  products[0].n += num_fm;
  products[0].w = first.data();
  products[0].bias = first_bias.data();
  plan.weights = forward_weights(type, plan.arguments, chunks, products);
  plan.vectors = forward_vectors(plan.arguments, products, model.head);
  return plan;
}

DeviceForward::DeviceForward(const ForwardModel& model, DataType type) : type_(type) {
  const ForwardPlan plan = plan_forward(model, type);
  const auto padded = [](std::size_t bytes) { return (bytes + 255) / 256 * 256; };
  const auto bytes = [](const auto& v) { return v.size() * sizeof(v[0]); };
  const std::size_t vectors = padded(bytes(plan.weights));
  const std::size_t fields = vectors + padded(bytes(plan.vectors));
  const std::size_t tickets = fields + padded(bytes(plan.fields));
  memory_ = DeviceBuffer(tickets + sizeof(unsigned));
  auto* memory = static_cast<char*>(memory_.get());
  const auto upload = [&](std::size_t place, const auto& v) {
    DPIF_CUDA_CHECK(cudaMemcpy(memory + place, v.data(), bytes(v), cudaMemcpyHostToDevice));
  };
  upload(0, plan.weights);
  upload(vectors, plan.vectors);
  upload(fields, plan.fields);
  DPIF_CUDA_CHECK(cudaMemset(memory + tickets, 0, sizeof(unsigned)));
  arguments_ = plan.arguments;
  arguments_.weights = memory;
  arguments_.vectors = reinterpret_cast<const float*>(memory + vectors);
  arguments_.fields = reinterpret_cast<const ForwardField*>(memory + fields);
  arguments_.tickets = reinterpret_cast<unsigned*>(memory + tickets);
}

void DeviceForward::run(std::int64_t rows, const RunInputs& inputs, cudaStream_t stream) const {
  forward_hopper(type_, rows, inputs, arguments_, stream);
}

}  // namespace dpiframe
