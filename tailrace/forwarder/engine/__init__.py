"""The life of each file: found, identified, read in turns, sent, acknowledged.

    engine    the loop; also decides when a file and its run are done
    identify  whether a file is known, a copy of a known one, or new
    watch     inotify, which says where to look
    reader    opens files, and reads a bounded piece of each in a round
    sending   hands batches to the delivery
    state     the tracked files

One thread does all of this. Only the delivery has threads of its own.
"""
