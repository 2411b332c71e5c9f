"""What a node needs of its process and machine, whatever it stores."""
