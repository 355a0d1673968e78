"""How a request finds its route, and how its endpoint is called."""
