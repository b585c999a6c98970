package millrace.sinks;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermission;
import java.util.EnumSet;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFs;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FsConstants;
import org.apache.hadoop.fs.FsServerDefaults;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.local.LocalConfigKeys;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local file system, without a child process for each file.
 *
 * <p>Where its native library isn't there, Hadoop starts {@code chmod} for each file that it makes,
 * and {@code readlink} for each that it renames: about eight for each commit to a Delta table.
 */
public final class LocalFiles extends RawLocalFileSystem {
  private static final PosixFilePermission[] BITS = PosixFilePermission.values();

  @Override
  public void setPermission(Path path, FsPermission permission) throws IOException {
    if (permission.getStickyBit()) { // which Java's permissions can't say
      super.setPermission(path, permission);
      return;
    }
    Set<PosixFilePermission> permissions = EnumSet.noneOf(PosixFilePermission.class);
    for (PosixFilePermission each : BITS) {
      if ((permission.toShort() & 0400 >> each.ordinal()) != 0) {
        permissions.add(each);
      }
    }
    Files.setPosixFilePermissions(pathToFile(path).toPath(), permissions);
  }

  @Override
  public FileStatus getFileLinkStatus(Path path) throws IOException {
    boolean isLink = Files.isSymbolicLink(pathToFile(path).toPath());
    return isLink ? super.getFileLinkStatus(path) : getFileStatus(path);
  }

  /** With checksums, as {@code fs.file.impl}. */
  public static final class Checked extends LocalFileSystem {
    public Checked() {
      super(new LocalFiles());
    }
  }

  /** With checksums, as {@code fs.AbstractFileSystem.file.impl}. */
  public static final class CheckedContext extends ChecksumFs {
    /** Called by Hadoop, which looks for a constructor of these. */
    public CheckedContext(URI uri, Configuration configuration)
        throws IOException, URISyntaxException {
      super(new Context(uri, configuration));
    }
  }

  private static final class Context extends DelegateToFileSystem {
    Context(URI uri, Configuration configuration) throws IOException, URISyntaxException {
      super(uri, new LocalFiles(), configuration, FsConstants.LOCAL_FS_URI.getScheme(), false);
    }

    @Override
    public int getUriDefaultPort() {
      return -1;
    }

    @Override
    public FsServerDefaults getServerDefaults(Path path) throws IOException {
      return LocalConfigKeys.getServerDefaults();
    }

    @Override
    @Deprecated
    public FsServerDefaults getServerDefaults() throws IOException {
      return LocalConfigKeys.getServerDefaults();
    }

    @Override
    public boolean isValidName(String name) {
      return true; // Hadoop's own says so: colons are allowed here
    }
  }
}
