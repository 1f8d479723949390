// What the fuzzers share: how often each outcome came, how long a case took, and the memory that
// the code under test takes for it, which is bounded by the size of the input.
//
// libFuzzer bounds the time (-timeout) and stops at what the sanitizers find. At its end a fuzzer
// prints a line "RESULT {json}".
#pragma once

#include <sanitizer/allocator_interface.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

namespace dpiframe::fuzz {

// All memory of a case together: 4 times its bytes and 64 MB.
constexpr std::int64_t kTimesInput = 4, kBeside = 64 << 20;

// The property that a fuzzer looks for is broken: libFuzzer keeps the input.
[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::abort();
}

inline void require(bool holds, const char* what) {
  if (!holds) fail(what);
}

struct Largest {
  std::int64_t bytes = 0;
  std::int64_t input_bytes = 0;
};

class Record {
 public:
  static Record& get() {
    static Record* const record = new Record;  // outlives what is destroyed at the end
    return *record;
  }

  void begin(std::int64_t input_bytes) { ++cases_, input_bytes_ = input_bytes, live_ = 0; }
  void end(double ms) { longest_ms_ = std::max(longest_ms_, ms); }
  void count(const std::string& outcome) { ++outcomes_[outcome]; }
  void fact(const std::string& name, const std::string& value) { facts_[name] = value; }

  // While `counting`, from the allocator.
  void took(std::int64_t bytes) {
    if (!counting) return;
    live_ += bytes;
    if (bytes > largest_.bytes) largest_ = {bytes, input_bytes_};
    if (live_ > most_.bytes) most_ = {live_, input_bytes_};
    if (live_ <= kTimesInput * input_bytes_ + kBeside) return;
    counting = false;
    fail("a case of " + std::to_string(input_bytes_) + " bytes takes " + std::to_string(live_));
  }
  void gave(std::int64_t bytes) {
    if (counting) live_ -= bytes;
  }

  bool counting = false;

 private:
  Record() {
    the_record_ = this;
    __sanitizer_install_malloc_and_free_hooks(
        [](const volatile void*, std::size_t bytes) { the_record_->took(bytes); },
        [](const volatile void* memory) {
          if (memory != nullptr)
            the_record_->gave(__sanitizer_get_allocated_size(const_cast<const void*>(memory)));
        });
    std::atexit([] { the_record_->print(); });
  }

  void print() const {
    std::string outcomes, facts;
    for (const auto& [name, times] : outcomes_)
      outcomes += (outcomes.empty() ? "\"" : ", \"") + name + "\": " + std::to_string(times);
    for (const auto& [name, value] : facts_) facts += "\"" + name + "\": \"" + value + "\", ";
    const auto of = [](const Largest& largest) {
      return "{\"bytes\": " + std::to_string(largest.bytes) +
             ", \"input_bytes\": " + std::to_string(largest.input_bytes) + "}";
    };
    std::fprintf(stderr,
                 "RESULT {\"cases\": %lld, %s\"longest_ms\": %.1f, \"largest_allocation\": %s, "
                 "\"most_memory\": %s, \"outcomes\": {%s}}\n",
                 static_cast<long long>(cases_), facts.c_str(), longest_ms_, of(largest_).c_str(),
                 of(most_).c_str(), outcomes.c_str());
  }

  static inline Record* the_record_ = nullptr;
  std::int64_t cases_ = 0, input_bytes_ = 0;
  std::int64_t live_ = 0;  // bytes that the case holds
  double longest_ms_ = 0;
  Largest largest_;  // one allocation
  Largest most_;     // all of a case at a time
  std::map<std::string, std::int64_t> outcomes_;
  std::map<std::string, std::string> facts_;
};

// A case lasts as long as this.
class Case {
 public:
  explicit Case(std::int64_t input_bytes) { Record::get().begin(input_bytes); }
  ~Case() {
    Record::get().end(1000.0 * static_cast<double>(std::clock() - began_) / CLOCKS_PER_SEC);
  }

 private:
  std::clock_t began_ = std::clock();  // of the processor: the same on a busy machine
};

// Runs the code under test, whose memory counts; what it refuses, in words, or nothing.
template <class Call>
std::optional<std::string> refusal(Call call) {
  struct Counting {
    Counting() { Record::get().counting = true; }
    ~Counting() { Record::get().counting = false; }
  };
  try {
    const Counting counting;
    call();
    return {};
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
}

}  // namespace dpiframe::fuzz
