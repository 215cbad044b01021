"""The controller's side of the dialogue with a host: staging files, launching and following the agent."""
