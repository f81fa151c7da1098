"""`app=describe`: write what other data owners need to fit one feature pipeline to all tables."""

from pathlib import Path
from typing import Any

from partitioning.describe_tables import describe_tables
from retexo.apps.resume import check_unused
from retexo.results.atomic_write import write_json
from retexo.results.run_lock import locks_run_dir
from retexo.settings.run_settings import Settings

FILE = "spec.json"


@locks_run_dir
def run(settings: Settings, run_dir: Path) -> dict[str, Any]:
    """Write run_dir/spec.json, print what it discloses, and return its content."""
    check_unused(run_dir, (FILE,))
    summaries = describe_tables(settings.partition.dataset)
    for table, summary in summaries.items():
        numbers = [each["name"] for each in summary["columns"] if "categories" not in each]
        print(f"{table}: {summary['num_rows']} rows ({summary['fitted_on']})")
        print(f"{table}: counts, range, mean, variance and histogram of {', '.join(numbers)}")
        for each in summary["columns"]:
            if "categories" in each:
                print(
                    f"{table}: names of the {len(each['categories'])} categories of"
                    f" {each['name']}, and how many rows have each"
                )
    content = {"summaries": summaries}
    write_json(run_dir / FILE, content)
    print(f"written to {run_dir / FILE}; look at it before you send it")
    return content
