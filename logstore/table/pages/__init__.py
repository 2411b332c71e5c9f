"""Single lines of a row group of a table file, read from its pages without decoding the rest.

line_map.py  where the lines of a row group lie, as a skip index has it
reader.py    lines by such a map
made.py      makes the map of a row group, and compares what it gives with Parquet's own reader
checksums.py whether pages are as they were written, by their CRCs
headers.py   where the pages of a column lie, by Parquet's Thrift
"""
