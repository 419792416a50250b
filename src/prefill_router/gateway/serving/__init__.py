"""Serving: the pieces joined, one request after another, until the process is asked to end.

places, loading                where everything is, read and checked with every error at once
gateway, lasting, live         what lasts as long as the process, and what a reload replaces
restoring, recent              what receipts tell at the start, what ended lately
begun, incoming, answering, recording     one request: read, decided on, forwarded, put on record
plain, errands, schema_plain   what is passed on undecided: stored responses, counts of tokens
alone, models, operations      the gateway's own endpoints; schema describes the forwarding ones
page_numbers, page_rows, page_tradeoff    what the page shows
replaying                      recorded requests decided again, in their conversations
readings, soundness            what metrics and health look at
app, running, background       the application, its process, or a thread of another one
"""
