"""Where the runner reaches past a library's public interface: patches, private names, stand-ins.

One module per library. Each names in `CHECKED` the versions it was tried with, says in its docstring why the public
interface does not do, and has a test in tests/unit/test_compat.py that fails when the library changes underneath it.
Nothing else in the runner uses a private name of a library.
"""
