"""The thread pool throws where threads do not start or tasks fail; it never ends the process."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[3] / "csrc"

PROGRAM = r"""
#include <dlfcn.h>
#include <pthread.h>
#include <cerrno>
#include <iostream>
#include <stdexcept>
#include "common/thread_pool.h"

int threads_left = 3;

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*start)(void*), void* argument) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  if (threads_left-- <= 0) return EAGAIN;
  return create(thread, attributes, start, argument);
}

int main() {
  try {
    dpiframe::ThreadPool pool(16);
  } catch (const std::runtime_error& error) {
    std::cout << error.what() << '\n';
  }
  threads_left = 16;
  dpiframe::ThreadPool pool(4);
  for (int round = 0; round < 100; ++round) {
    std::atomic<int> calls = 0;
    try {
      pool.run(19, [&](int i) {
        ++calls;
        if (i % 5 == 3) throw std::invalid_argument("a task failed");
      });
      return 1;
    } catch (const std::invalid_argument& error) {
      if (calls != 19) return 2;
      if (round == 0) std::cout << error.what() << '\n';
    }
    std::atomic<int> sum = 0;
    pool.run(19, [&](int i) { sum += i; });
    if (sum != 171) return 3;
  }
}
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("g++") is None, reason="needs g++")
def test_threads_that_do_not_start_and_tasks_that_fail(tmp_path: Path) -> None:
    source, program = tmp_path / "program.cpp", tmp_path / "program"
    source.write_text(PROGRAM.lstrip())
    sources = [str(source), str(CSRC / "common/thread_pool.cpp")]
    command = ["g++", "-std=c++20", "-pthread", f"-I{CSRC}", "-o", str(program), *sources, "-ldl"]
    subprocess.run(command, check=True, timeout=200)
    ran = subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
    started, failed = ran.stdout.splitlines()
    assert started.startswith("the system started only 3 of 16 threads: ")
    assert failed == "a task failed"
