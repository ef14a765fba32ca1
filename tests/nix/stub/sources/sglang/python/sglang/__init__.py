tree = "branch"
