"""`app=describe`: what data owners need to fit one feature pipeline to the tables of all.

Without features.spec a site describes its table by itself. With features.spec=columns.json all
sites start it, and fit the pipeline by sums over the network.
"""

from pathlib import Path
from typing import Any

from partitioning.graph.schema import describe
from partitioning.sites.describe_tables import SharedTables, describe_tables
from partitioning.sites.site_folders import find_sites
from retexo.apps.resume import check_unused
from retexo.apps.run_identity import shared_settings
from retexo.launch import rendezvous, start_workers
from retexo.launch.handshake import RunInfo
from retexo.results.atomic_write import write_json
from retexo.results.run_lock import locks_run_dir
from retexo.settings.run_settings import Settings
from retexo.worker.describe import DescribeJob, main

FILE, AGREED_FILE = "spec.json", "columns.json"


@locks_run_dir
def run(settings: Settings, run_dir: Path) -> dict[str, Any]:
    """Write run_dir/columns.json, or spec.json of all sites, and return its content.

    Prints the columns, or for sites the sums that were exchanged. InputError if a file is there.
    """
    check_unused(run_dir, (FILE, AGREED_FILE))
    if settings.dataset_name == "parts" and settings.features.spec is not None:
        return _fit_together(settings, run_dir)
    proposed, decided = describe_tables(settings)
    print(*decided, sep="\n", end="\n" * bool(decided))
    for table, content in proposed.items():
        for name, column in content["columns"].items():
            values = column.get("range") or ", ".join(column["categories"])
            print(f"{table}: {name}, {column['role']}: {values}")
    content = proposed["nodes"] if settings.dataset_name == "parts" else proposed
    write_json(run_dir / AGREED_FILE, content)
    print(f"written to {run_dir / AGREED_FILE}: only columns, rounded ranges and categories")
    if settings.dataset_name == "parts":
        print("edit it, agree on one file, and give it as features.spec of app=describe everywhere")
    return content


def _fit_together(settings: Settings, run_dir: Path) -> dict[str, Any]:
    """Fit a pipeline with all other sites, by sums of workers.

    Write the same spec.json at each, print the pipeline and the bytes, and return the content.
    """
    directory = find_sites(
        Path(settings.dataset_file or ""), settings.num_partitions, settings.dataset_max_gib
    )
    tables = SharedTables.read(settings, directory, settings.local_ranks)
    common = shared_settings(settings)
    common["features.spec"] = tables.compared
    info = RunInfo(common, directory.digest(), directory.remedy)
    with rendezvous.connect_nodes(settings, info) as node:
        run_dir.mkdir(parents=True, exist_ok=True)
        job = DescribeJob(settings, directory, run_dir, node.rendezvous, tables)
        results = start_workers.run_workers(settings.local_ranks, main, job, node)
    content = {"features": {"nodes": results[settings.local_ranks.start]["state"]}}
    write_json(run_dir / FILE, content, checksum=True)
    how = "masked" if settings.gradient.secure else "in the clear"
    for line in tables.describe():
        print(f"sums of all sites ({how}), {line}")
    print(*describe(content["features"]), sep="\n")
    print(f"bytes sent: {sum(result['bytes'] for result in results.values()):,}")
    print(f"written to {run_dir / FILE}: give features.spec={run_dir / FILE} at this site")
    return content
