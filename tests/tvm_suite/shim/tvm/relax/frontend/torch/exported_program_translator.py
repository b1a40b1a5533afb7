"""TVM's importer of exported programs."""

from smelt.relax.frontend.torch import Importer as ExportedProgramImporter

__all__ = ["ExportedProgramImporter"]
