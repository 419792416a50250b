from .application import app as app, main as main
