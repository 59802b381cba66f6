"""Training recipes: one script whose switches are the techniques, and a program that measures them."""
