"""How much longer than on a free machine something may take in a test: sanitizers slow it down (CMakePresets.json says by how much), and so do
programs beside it (tools/test --busy). slack.h is the same for tests in C++."""
import os

SLACK = float(os.environ.get("DDP_TEST_SLACK", "1")) * (1 + float(os.environ.get("DDP_TEST_BUSY", "0")))
