"""TVM's errors: all of smelt's are one kind, and Python's own are what they are."""

from __future__ import annotations

from smelt.errors import SmeltError

TVMError = InternalError = DiagnosticError = SmeltError
