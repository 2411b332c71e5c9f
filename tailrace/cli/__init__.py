"""The command `tailrace`: a module for each verb, which loads when the verb is called."""
