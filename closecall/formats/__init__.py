"""Judged sets in the forms that others keep them in: read into the native layout, and written back.

`importer` reads them, `writers` writes them.

`tables` reads files of rows, `columns` says what their columns are, `parts` makes documents, queries and judgments of
them; `topics` (TREC), `engines` (Quepid, OpenSearch, Elasticsearch, LTR) and `hub` (Hugging Face, ir_datasets) read
what is no table; `source` tells which of them a file or folder is; `chunks` moves judgments between documents and
their chunks.
"""
