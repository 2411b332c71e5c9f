"""What the verbs share that speak to a person: colours, a pager, completion of arguments."""
