"""The foreign SDKs, installed as the tests of tests/clients do; their module has our harness's name."""
import importlib.util
import os

import harness

_spec = importlib.util.spec_from_file_location(
    "clients", os.path.join(harness.SOURCE, "tests/clients/harness.py"))
_clients = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_clients)

node_folder = _clients.node_folder
python_of_clients = _clients.python_of_clients
