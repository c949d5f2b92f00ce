"""`layactl cache ...`."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Annotated

import typer

from layactl.cli.output import note, path_line, record
from layactl.errors import UsageError

app = typer.Typer(help="Conversions of checkpoint folders, kept for the next start.", no_args_is_help=True)

CacheDir = Annotated[
    Path | None,
    typer.Option("--cache-dir", metavar="DIR", help="The cache. Default: $LAYACTL_CACHE, else the platform's place."),
]
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _cache_dir(chosen: Path | None) -> Path:
    from layactl.convert.cache import default_cache_dir

    return chosen if chosen is not None else default_cache_dir()


@app.command("path")
def path_command(cache_dir: CacheDir = None) -> None:
    """Print where the cache is."""
    path_line(_cache_dir(cache_dir))


@app.command("list")
def list_command(cache_dir: CacheDir = None) -> None:
    """Print one JSON object a conversion, most recently used first."""
    from layactl.convert.cache import list_entries

    for entry in list_entries(_cache_dir(cache_dir)):
        used = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(entry.used))
        record({"key": entry.folder.name, "name": entry.name, "bytes": entry.nbytes, "last_used": used})


@app.command("prune")
def prune_command(
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="AGE", help="Not used for 30d, 12h, 45m, ...")
    ] = None,
    max_size: Annotated[
        str | None, typer.Option("--max-size", metavar="SIZE", help="Keep the most recently used within 4G, 500M, ...")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and keep it.")] = False,
    cache_dir: CacheDir = None,
) -> None:
    """Remove conversions that were not used lately; a later start converts again. --max-size 0 removes all."""
    from layactl.convert.cache import choose_prunable, list_entries, remove_entry

    age = _amount(older_than, _SECONDS, "--older-than") if older_than is not None else None
    size = _amount(max_size, _UNITS, "--max-size") if max_size is not None else None
    if age is None and size is None:
        raise UsageError(
            "nothing to go by", hint="give --older-than 30d, --max-size 4G, or --max-size 0 for everything"
        )
    entries = list_entries(_cache_dir(cache_dir))
    chosen = choose_prunable(entries, age, size)
    for entry in chosen:
        if not dry_run:
            remove_entry(entry)
        path_line(entry.folder)
    freed = sum(entry.nbytes for entry in chosen)
    note(f"{len(chosen)} of {len(entries)} entries, {freed:,} bytes {'would be freed' if dry_run else 'freed'}")


def _amount(text: str, units: dict[str, int], option: str) -> int:
    match = re.fullmatch(r"(\d{1,12})([A-Za-z]?)", text)
    unit = None if match is None else next((u for u in units if u.lower() == match[2].lower()), None)
    if match is None or unit is None:
        raise UsageError(f"cannot read {text!r}", where=option, hint=f"a number and one of: {' '.join(units).strip()}")
    return int(match[1]) * units[unit]
