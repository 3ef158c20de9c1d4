"""Reports: tables, pictures, pages and exports, made from run directories alone."""
