// A program on one GPU: its weights, its arena, its steps, and the executor that runs them.
//
// Made in this order: construction takes all memory, add_weight of each weight, add_* of each step
// in the order of the plan's graph, build. Weights are given as float32 host memory (raw ones as
// bytes) and named by the number that add_weight returned; -1 is no weight. A view is columns of a
// buffer in the arena.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/precision.h"
#include "cuda/device_buffer.h"
#include "kernels/chain/product_chain.h"
#include "kernels/embedding/multi_table_lookup_cuda.h"
#include "kernels/embedding/rows_of_ids_cuda.h"
#include "kernels/fused/cross/fused_cross.h"
#include "kernels/fused/mlp/fused_mlp.h"
#include "kernels/gemm/mapped/mapped_linear.h"
#include "kernels/head/head.h"
#include "kernels/tensor/tensor_op.h"
#include "runtime/executor.h"

namespace dpiframe {

enum class WeightKind {
  kNumbers,  // float32
  kTable,    // of the activation type
  kProduct,  // prepared for a product
  kRaw,      // bytes as they are
};

// Columns of a buffer of the arena: a row-major matrix, of float32 or of the activation type.
struct ArenaView {
  std::int64_t offset;  // bytes
  std::int64_t row_stride;
  int width;
  bool is_float;
};

struct LookupSlot {
  int field;
  int table;  // a table, or -1
  int wide;   // numbers, or -1
  std::int64_t rows;
  std::int64_t dim;
  std::int64_t column;
  std::int64_t oov_row;
  bool in_fm;
};

// Dense features that a lookup brings along (DenseSlot). Weights are numbers, or -1.
struct DenseSlotStep {
  int first;
  int count;
  int dim;     // 0: as numbers
  int column;  // of the lookup's out
  int weight;
  int shift;
  int wide;
  std::optional<ArenaView> numbers;
  bool in_fm;
};

// A product with its epilogue; linear.h has the formula. Ranges of columns are of out. With several
// rows a sample, x and out are views of all of a sample's rows, each as far from the next in the
// sample as the last one from the next sample's first.
struct ProductStep {
  ArenaView x;
  int n;
  int weight;
  int bias;
  std::optional<ArenaView> out;
  std::vector<std::pair<int, int>> relu;
  int cross_begin;
  std::optional<ArenaView> x0;
  std::optional<ArenaView> xl;
  int head_begin;
  int head_width;
  int head;                             // numbers, or -1
  std::optional<std::int64_t> partial;  // offset of float32 [head_partials, max_rows]
  int rows_a_sample = 1;                // more than 1: no epilogue but the bias
  int places = 1;                       // products that are one; x is the first one's
  int place_step = 0;                   // columns from one's x to the next one's
};

// A further operand of a product's epilogue: a view, or numbers that have one entry a column.
struct MapSource {
  std::optional<ArenaView> view;
  int weight;          // numbers, where there is no view
  int place_step = 0;  // of one number a sample: columns from one place's to the next one's
};

// What a product with a compiled epilogue makes of its rows, and reads of those of x, which a
// product of n and k made: offsets of float32 [head_partials, max_rows], and how many columns x
// has.
struct ProductRowsStep {
  std::optional<std::int64_t> sums_out;
  std::optional<std::int64_t> squares_out;
  std::optional<std::int64_t> sums;
  std::optional<std::int64_t> squares;
  int made_n;
  int made_k;
  int width;
  float eps;
};

struct HeadPart {
  ArenaView a;
  std::optional<ArenaView> b;
  int weight;     // numbers, or -1
  int partial_n;  // not 0: a holds the partial dots of a product of so many columns,
  int partial_k;  // and so many terms
};

// A kernel that was compiled at load (jit/compiled_params.h).
struct CompiledStep {
  std::string cubin;
  std::string kernel;
  int threads;  // a block
  int shared_bytes;
  int samples_a_block;
  std::vector<ArenaView> reads;
  std::vector<ArenaView> writes;
  std::vector<int> weights;
};

// A product of a chain.
struct ChainProduct {
  int weight;  // a product's
  int n;
  int k;
  int vectors;                   // numbers that each column has
  std::optional<ArenaView> out;  // where other steps read it
  // Offsets of float32 [head_partials, max_rows]: of the head's dot, the sums of rows and of their
  // squares.
  std::optional<std::int64_t> partial;
  std::optional<std::int64_t> sums;
  std::optional<std::int64_t> squares;
};

// Products that one kernel, compiled at load, runs where that is faster than one by one.
struct ChainStep {
  std::vector<ArenaView> inputs;
  std::vector<ChainProduct> products;
  std::string cubin;
  int shared_bytes;                // a block
  int ctas;                        // of a cluster, which share a tile
  std::vector<std::int64_t> rows;  // the batches that run so
};

class CudaProgram {
 public:
  CudaProgram(int device, Precision precision, std::int64_t max_rows, std::size_t weight_bytes,
              std::size_t arena_bytes);
  ~CudaProgram();

  // Bytes that a weight takes of weight_bytes.
  static std::size_t bytes_of_weight(Precision precision, WeightKind kind, std::int64_t rows,
                                     std::int64_t columns);
  int add_weight(WeightKind kind, const void* values, std::int64_t rows, std::int64_t columns);

  // Where ids repeat: what fields [F] there are. Batches come with ids, steps read rows.
  void add_field_ids(const std::vector<FieldIds>& fields);

  // Returns the offset of the lookup's counters in the report: one a slot, and one more.
  int add_lookup(const std::vector<LookupSlot>& slots, const std::vector<DenseSlotStep>& dense,
                 const std::optional<ArenaView>& out, const std::optional<ArenaView>& fm,
                 const std::optional<ArenaView>& wide);
  void add_load_dense(const ArenaView& out);
  // A small step by its name in kernels/elementwise/steps.cu; weights are numbers.
  void add_elementwise(const std::string& name, const std::vector<ArenaView>& inputs,
                       const std::vector<int>& weights, const std::vector<int>& sizes,
                       const ArenaView& out);
  void add_product(const ProductStep& step);
  // A product without ranges, whose epilogue is an expression (mapped_linear.h).
  void add_mapped_product(const ProductStep& step, const std::vector<MapSource>& sources,
                          const ProductRowsStep& rows,
                          const std::vector<std::pair<LinearConfig, std::string>>& kernels);
  // An operation over tensors; operands read the inputs and then the weights, which are numbers.
  void add_tensor(const TensorOp& op, const std::vector<ArenaView>& inputs,
                  const std::vector<int>& weights, const std::vector<Operand>& operands,
                  const ArenaView& out);
  void add_compiled(const CompiledStep& step);
  // In the place of the last `steps` steps, which run where the chain does not.
  void add_chain(const ChainStep& chain, int steps);
  // The last step: it writes the scores.
  void add_head(const std::vector<HeadPart>& parts, float bias, const ArenaView& out);
  // A fused forward kernel in place of all steps, for small batches; after them. `model` is all but
  // its fields and its place in the report. For buckets of more than `above` samples, since it
  // takes as long for few samples as for many. Nothing happens on a GPU that has no such kernel.
  void add_fused_mlp(const std::vector<LookupSlot>& slots, const FusedMlpModel& model,
                     std::int64_t above);
  // For large batches too, where the model fits and the arena is large enough to work in. In fp32
  // one kernel for all of them, or nothing where the arena is too small.
  void add_fused_cross(const std::vector<LookupSlot>& slots, const FusedCrossModel& model,
                       std::int64_t above);

  void build(const Plan& plan, const ExecutorOptions& options);

  // Enqueues a batch on `stream`, of which any may come but one at a time (executor.h). After an
  // error of CUDA the program refuses to run again.
  void run(const BatchMemory& inputs, cudaStream_t stream);
  void poison();  // for tests: fills the arena with NaN

  int device() const { return device_; }
  std::int64_t max_rows() const { return max_rows_; }
  int num_report() const { return num_report_; }
  const Stream& stream() const { return executor_->stream(); }
  // As Executor has them.
  void choose_streams(const BatchMemory& inputs) { executor_->choose_streams(in_rows(inputs)); }
  std::vector<std::int64_t> buckets_in_turn() const { return executor_->buckets_in_turn(); }
  // Batches of more than so many samples and up to so many run as one fused kernel.
  std::int64_t fused_above() const { return fused_above_; }
  std::int64_t fused_up_to() const { return fused_up_to_; }
  bool has_field_ids() const { return rows_of_ids_ != nullptr; }
  std::size_t device_bytes() const;

 private:
  using Launch = std::function<void(std::int64_t rows, const BatchMemory&, cudaStream_t)>;

  std::span<std::byte> arena() const {
    return {static_cast<std::byte*>(arena_.get()), arena_.bytes()};
  }
  Matrix matrix(const ArenaView& view) const;
  BatchMemory in_rows(const BatchMemory& inputs) const;
  LinearParams product_params(const ProductStep& step) const;
  const float* numbers(int weight) const;
  float* partial(std::optional<std::int64_t> offset) const;  // null: none
  std::vector<DeviceLookupField> fields(const std::vector<LookupSlot>& slots) const;
  void upload(DataType type, const float* values, std::int64_t size, char* target);
  void add_step(Launch launch, bool takes_batch = false);
  template <class Model, class Make>
  void add_fused(const std::vector<LookupSlot>& slots, Model model, std::int64_t above,
                 const Make& make);

  int device_;
  Precision precision_;
  std::int64_t max_rows_;
  DeviceBuffer weights_;
  DeviceBuffer arena_;
  DeviceBuffer staging_;       // while weights are added
  DeviceBuffer batch_memory_;  // the first lookup's, for the head; empty: there is no lookup
  std::size_t used_ = 0;
  std::vector<char*> weight_addresses_;
  std::vector<std::int64_t> weight_sizes_;        // numbers in each
  std::unique_ptr<DeviceRowsOfIds> rows_of_ids_;  // null: ids are rows
  std::vector<std::unique_ptr<DeviceLookupFields>> lookups_;
  Launch fused_;  // what add_fused_mlp or add_fused_cross added
  std::size_t fused_bytes_ = 0;
  std::int64_t fused_above_ = 0;
  std::int64_t fused_up_to_ = 0;
  int num_report_ = 0;
  std::vector<LaunchStep> steps_;
  bool behind_product_ = false;  // the last of them is one product
  std::unique_ptr<Executor> executor_;
  std::string failure_;            // of a run; empty: none
  bool memory_was_short_ = false;  // the failure was that
  bool device_was_lost_ = false;
};

}  // namespace dpiframe
