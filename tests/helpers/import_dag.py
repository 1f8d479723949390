"""Imports the DAGs of a folder as Airflow does; ends with 1 where one does not import. `make
check-airflow` runs it in an environment that has Airflow and nothing of this project.
"""

from __future__ import annotations

import sys


def main() -> int:
    from airflow.dag_processing.dagbag import DagBag  # type: ignore[import-not-found]

    bag = DagBag(sys.argv[1])
    for file, trace in bag.import_errors.items():
        print(file, trace, sep="\n")
    for name, dag in bag.dags.items():
        print(name, dag.timetable.summary, [task.task_id for task in dag.tasks])
    return int(bool(bag.import_errors) or not bag.dags)


if __name__ == "__main__":
    sys.exit(main())
