from .routes import PageNumbers as PageNumbers, PageSource as PageSource, page_routes as page_routes
