"""A contract of import-linter: a package is imported through its face, its `__init__`, alone."""

import grimp
from importlinter import Contract, ContractCheck, fields, output


class FaceContract(Contract):
    """The contract `type = "face"` in `pyproject.toml`.

    A module is imported by the modules of its own package, at any depth; all others import the
    package. An open package has no face: all may import its modules.
    """

    type_name = "face"
    open_packages = fields.ListField(subfield=fields.StringField(), required=False)

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:  # noqa: ARG002
        """Look at every import."""
        packages = {module.rpartition(".")[0] for module in graph.modules}
        is_open = set(self.open_packages or ())  # type: ignore[call-overload]
        past = [
            f"{importer} imports {imported}; import it from {imported.rpartition('.')[0]}"
            for importer in sorted(graph.modules)
            for imported in sorted(graph.find_modules_directly_imported_by(importer) - packages)
            if imported.rpartition(".")[0] not in is_open
            and not f"{importer}.".startswith(f"{imported.rpartition('.')[0]}.")
        ]
        return ContractCheck(kept=not past, metadata={"past": past})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print each import that goes past a face."""
        for line in check.metadata["past"]:
            output.print_error(line)
