from .numbers import PageNumbers as PageNumbers
from .routes import PageSource as PageSource, page_routes as page_routes
