"""Run as a program with HF_HUB_CACHE: loads encoders by hub id, twice, and prints what they are."""

import json
import sys

from prefill_router.encoders import default_sites, load_encoder, load_encoder_for

found = {}
for name in sys.argv[1:]:
    encoder = load_encoder(name, device="cpu", dtype="float32")
    made_by = encoder.provenance
    again = load_encoder_for(made_by, device="cpu")
    found[name] = [
        made_by.encoder,
        made_by.revision,
        again.provenance == made_by,
        [site.name for site in default_sites(made_by)],
    ]
json.dump(found, sys.stdout)
