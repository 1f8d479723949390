"""Teams share their threads: one pool, or those of OpenMP where the process has it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[3] / "csrc"

PROGRAM = r"""
#include <atomic>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <vector>
#include <sys/wait.h>
#include <unistd.h>
#include "common/thread_team.h"

#ifdef _OPENMP
#include <omp.h>
#endif

int main() {
#ifdef _OPENMP
  omp_get_max_threads();  // or the linker leaves its library out
#endif
  std::vector<dpiframe::ThreadTeam> teams;
  for (int i = 0; i < 20; ++i) teams.emplace_back(4);
  for (int round = 0; round < 200; ++round) {
    const dpiframe::ThreadTeam& team = teams[round % 20];
    const int tasks = round % 9;
    std::vector<std::atomic<int>> calls(tasks);
    team.run(tasks, [&](int i) { ++calls[i]; });
    for (const std::atomic<int>& count : calls)
      if (count != 1) return 1;
    std::atomic<int> ended = 0;
    try {
      team.run(19, [&](int i) {
        ++ended;
        if (i % 5 == 3) throw std::invalid_argument("a task failed");
      });
      return 2;
    } catch (const std::invalid_argument&) {
      if (ended != 19) return 3;
    }
  }
  const std::filesystem::directory_iterator threads("/proc/self/task");
  std::cout << std::distance(begin(threads), end(threads)) << std::endl;
  if (const pid_t child = fork(); child != 0) {
    int status = 0;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
  }
  std::atomic<int> calls = 0;
  dpiframe::ThreadTeam(4).run(99, [&](int) { ++calls; });
  _exit(calls == 99 ? 0 : 4);
}
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("openmp", [False, True])
def test_teams_run_every_task_once_on_the_same_threads(tmp_path: Path, openmp: bool) -> None:
    source, program = tmp_path / "program.cpp", tmp_path / "program"
    source.write_text(PROGRAM.lstrip())
    sources = [str(source), *(str(CSRC / f"common/thread_{name}.cpp") for name in ("pool", "team"))]
    command = ["g++", "-std=c++20", "-pthread", f"-I{CSRC}", "-o", str(program), *sources, "-ldl"]
    subprocess.run([*command, *(["-fopenmp"] if openmp else [])], check=True, timeout=200)
    ran = subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stderr, ran.stdout) == (0, "", "4\n")
